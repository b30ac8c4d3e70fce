"""Prints one error message for bad input on stderr, even if several ranks report it.

Ranks started by ``--nproc`` write the message to a file (``Sentences``), and their launcher prints the first
message after they exit. Every other process prints its own message.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import sys

from llm_npu.core.untrusted.plain_text import LAYOUT, printable

_FILE = "LLM_NPU_REFUSALS"  # the file's descriptor
_END = b"\0"  # terminates a message, which may have several lines
_LONGEST = 1 << 20  # bytes


def say(sentence: str) -> None:
    """Print why the input is rejected, or pass the message to this rank's launcher."""
    file = os.environ.get(_FILE)
    if file is None:
        print(f"error: {printable(sentence, keep=LAYOUT)}", file=sys.stderr)
    else:
        os.write(int(file), sentence.encode(errors="backslashreplace") + _END)


class Sentences:
    """The messages of the ranks, in an unnamed file. The ranks inherit ``environment`` and ``descriptor``."""

    def __init__(self):
        self._file = open(os.memfd_create("refusals"), "rb")  # noqa: SIM115  (works with a full disk)
        self.descriptor = self._file.fileno()
        self.environment = {_FILE: str(self.descriptor)}

    def first(self) -> str:
        """The first message; "" if there is none."""
        return os.pread(self.descriptor, _LONGEST, 0).partition(_END)[0].decode(errors="replace")
