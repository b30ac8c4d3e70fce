"""Standard streams that survive a closed pipe, for every command of this project.

    python -m paddle_fused.parity --json FILE | head -1

After ``head`` exits, Python's next ``print`` raises BrokenPipeError, and the command's work is lost. After
``outlive``, a closed stream is redirected to /dev/null, also for other libraries and child processes, and the
command runs to completion with its regular exit code. Characters that the stream cannot encode are written as
escapes, such as \\xb1, instead of raising UnicodeEncodeError.

Imports only the standard library, because commands call it before anything else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

NAMES = {"stdout": 1, "stderr": 2}
# Error handlers: what an encoding such as gbk cannot encode, and undecodable bytes of file names.
RAISE, ESCAPES = ("strict", "surrogateescape", "surrogatepass"), "backslashreplace"
_lost: dict[str, OSError] = {}


class _Outliving(io.FileIO):
    """The file descriptor of a standard stream, replaced by /dev/null after an error."""

    def __init__(self, name: str):
        super().__init__(NAMES[name], "wb", closefd=False)
        self._stream = name

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            _lost[self._stream] = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if error.errno != errno.EPIPE:  # a closed pipe needs no message
                with suppress(OSError):
                    os.write(2, f"{self._stream}: {error.strerror}; further output is dropped.\n".encode())
            return len(data)


def outlive() -> None:
    """Makes stdout and stderr survive a closed pipe and accept any text.

    Closed and replaced streams are not changed.
    """
    for name in NAMES:
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue
        if isinstance(getattr(stream.buffer, "raw", stream.buffer), _Outliving):
            continue
        raw = _Outliving(name)
        unbuffered = isinstance(stream.buffer, io.RawIOBase)
        outliving = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            stream.encoding,
            ESCAPES if stream.errors in RAISE else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        with suppress(OSError):
            stream.flush()
        setattr(sys, name, outliving)
        setattr(sys, f"__{name}__", outliving)


def lost(name: str = "stdout") -> OSError | None:
    """The error that ended a stream, such as BrokenPipeError, or None."""
    return _lost.get(name)


def lost_folder() -> str:
    """An error message if the current folder has been deleted, otherwise "".

    Paddle cannot be imported from a deleted folder.
    """
    try:
        os.getcwd()
        return ""
    except FileNotFoundError:
        return "the current folder has been deleted; change to an existing folder"
