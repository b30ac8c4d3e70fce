"""Bad input is answered with one sentence on stderr, however many processes have found it.

``--nproc`` gives its ranks a file (``Sentences``): what they refuse goes there, and the process that has
started them prints it once they have ended. Other processes print it themselves.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import sys
import tempfile

_FILE = "LLM_NPU_REFUSALS"  # its descriptor
_END = b"\0"  # of a sentence, which may have several lines
_LONGEST = 1 << 20  # bytes


def say(sentence: str) -> None:
    """Print why the input is refused, or leave that to the process that has started this rank."""
    file = os.environ.get(_FILE)
    if file is None:
        print(f"error: {sentence}", file=sys.stderr)
    else:
        os.write(int(file), sentence.encode() + _END)


class Sentences:
    """What ranks refuse, in a file without a name. ``environment`` and ``descriptor`` are for the ranks."""

    def __init__(self):
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as ranks may write)
        self.descriptor = self._file.fileno()
        self.environment = {_FILE: str(self.descriptor)}

    def first(self) -> str:
        """The first of them; empty without any."""
        return os.pread(self.descriptor, _LONGEST, 0).partition(_END)[0].decode(errors="replace")
