"""Errors that are meant for the user of a program. Importing this module imports no framework."""

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
    """Bad input that all ranks of a run have found together: each raises one, and none misses another."""


@contextlib.contextmanager
def caused_by_the_user() -> Iterator[None]:
    """Turn any ValueError raised inside into a UserError: a library is given values that the user chose."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the name of ``file`` to an OSError, which the errors of writes lack.

    Libraries in Rust (tokenizers, safetensors) raise other exceptions, which state the number of the error.
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
    """The sentence of ``error``, without the C++ stack that Paddle puts around it."""
    match = re.search(r"Out of memory.*", str(error)) or re.search(r"Unable to allocate.*", str(error))
    return match[0] if match else "Out of memory."
