"""Errors shown to the user. Importing this module imports no framework."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from paddle_fused.command_line import UserError, is_for_the_user

__all__ = [
    "ErrorOfAllRanks",
    "UserError",
    "caused_by_the_user",
    "is_for_the_user",
    "naming",
    "out_of_memory",
]

_OF_RUST = re.compile(r"(?:\(os error |Os { code: )(\d+)")


class ErrorOfAllRanks(UserError):
    """Bad input that every rank detected: each rank raises this error, so no rank waits for another."""


@contextlib.contextmanager
def caused_by_the_user() -> Iterator[None]:
    """Convert any ValueError raised inside to a UserError: the user chose the library's input."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the name of ``file`` to an OSError that has none; errors of writes do not name the file.

    Rust libraries (tokenizers, safetensors) raise their own exceptions, whose text contains the error number.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise
    except Exception as error:
        match = _OF_RUST.search(str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(file)) from error


def out_of_memory(error: MemoryError) -> str:
    """The message of ``error``, without Paddle's C++ stack trace."""
    match = re.search(r"Out of memory.*", str(error)) or re.search(r"Unable to allocate.*", str(error))
    return match[0] if match else "Out of memory."
