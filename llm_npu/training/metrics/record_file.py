"""A file of lines that a run appends to: ``metrics.jsonl``.

A full disk ends no run: what cannot be written waits in memory and follows with a later line.
"""

from __future__ import annotations

import os
from pathlib import Path

from llm_npu.core.atomic import new_file
from llm_npu.core.console import say
from llm_npu.core.errors import UserError, naming
from llm_npu.launch import own_file


class RecordFile:
    """Begins ``file`` anew with ``lines``; OSError if that cannot be written."""

    def __init__(self, file: Path, lines: list[str]):
        self._file, self._waiting, self._reported = file, b"", False
        with naming(file), new_file(file) as new:
            new.write_text("".join(f"{line}\n" for line in lines))

    def add(self, line: str) -> None:
        """Append ``line``, or keep it for later if it cannot be written; the first time, a note says so."""
        self._waiting += f"{line}\n".encode()
        try:
            self.flush()
        except (OSError, UserError) as error:
            if not self._reported:
                say(f"note     {error}; what it lacks is written as soon as that is possible")
            self._reported = True

    def flush(self) -> None:
        """Write what waits. OSError, which names the file, if that is impossible; UserError for a link."""
        if not self._waiting:
            return
        with naming(self._file):
            descriptor = own_file.open_for(self._file, os.O_WRONLY | os.O_APPEND)
            try:
                while self._waiting:
                    self._waiting = self._waiting[os.write(descriptor, self._waiting) :]
            finally:
                os.close(descriptor)
