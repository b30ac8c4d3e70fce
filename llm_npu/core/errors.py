"""Errors that are meant for the user of a program. Importing this module imports no framework."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UserError(ValueError):
    """What was asked for cannot be done. The text says what came, what is accepted, and what to do.

    A program answers it with that text and exit code 2 (``llm_npu.core.console.run``). Any other ValueError
    is a defect, and keeps its traceback.
    """


@contextlib.contextmanager
def caused_by_the_user() -> Iterator[None]:
    """Inside, any ValueError is the user's: code that knows no user is given values that come from one."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def is_for_the_user(error: BaseException) -> bool:
    """Whether the text of ``error`` is for the user: it is a UserError, or the operating system's, which
    gives a number."""
    return isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None)
