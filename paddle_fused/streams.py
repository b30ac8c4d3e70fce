"""Standard streams that outlive their reader, for every command of this project.

    python -m paddle_fused.parity --json FILE | head -1

When ``head`` has ended, Python's next ``print`` raises BrokenPipeError, and the command's work is lost. After
``outlive`` such a stream goes to /dev/null instead, also for other libraries and child processes, and the
command continues to its own end and exit code. Characters that the stream's encoding lacks are written as
escapes, such as \\xb1, where Python would raise UnicodeEncodeError.

Imports only the standard library: commands call this before anything else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

NAMES = {"stdout": 1, "stderr": 2}
# How a stream encodes: what an encoding such as gbk lacks, and bytes of file names, raise or become escapes.
RAISE, ESCAPES = ("strict", "surrogateescape", "surrogatepass"), "backslashreplace"
_lost: dict[str, OSError] = {}


class _Outliving(io.FileIO):
    """The file descriptor of a standard stream; after an error it is /dev/null."""

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
            if error.errno != errno.EPIPE:  # a reader that has closed the pipe wants no more
                with suppress(OSError):
                    os.write(2, f"{self._stream}: {error.strerror}; further output is dropped.\n".encode())
            return len(data)


def outlive() -> None:
    """Lets stdout and stderr outlive their reader, and take any text.

    A stream that is closed or replaced stays as it is.
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
    """A sentence if the current folder has been deleted, without which paddle cannot be imported; else ""."""
    try:
        os.getcwd()
        return ""
    except FileNotFoundError:
        return "the current folder has been deleted; change to one that exists"
