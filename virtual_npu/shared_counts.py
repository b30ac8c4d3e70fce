"""Counts that a process shares with those that it forks, such as the workers of a DataLoader."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator


class SharedCounts:
    """Counts of up to ``rows`` texts, which a process and those that it forks have in common."""

    _TEXT = 504  # bytes
    _PROCESSES = 16  # with a column of counts for each; further processes share the last one

    def __init__(self, rows: int):
        self._rows = rows
        columns = 8 * self._PROCESSES * (rows + 1)  # the last row counts the others
        self._file = os.memfd_create("aicpu warnings")
        os.ftruncate(self._file, 8 + columns + self._TEXT * rows)
        memory = memoryview(mmap.mmap(self._file, 0))
        self._used, self._counts = memory[:8].cast("Q"), memory[8 : 8 + columns].cast("Q")
        self._texts = memory[8 + columns :]
        self._begin_process()
        os.register_at_fork(after_in_child=self._begin_process)

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        with self._locked():
            column = min(self._used[0], self._PROCESSES - 1)
            self._used[0] = column + 1
        self._column = column * (self._rows + 1)

    def find(self, text: str) -> tuple[int, bool]:
        """The row of the text, and whether it is new; the row of the others if there is none left."""
        wanted = text.encode(errors="replace")[-self._TEXT :]
        with self._locked():
            for row in range(self._rows):
                present = self._text(row)
                if not present:
                    start = row * self._TEXT
                    self._texts[start : start + len(wanted)] = wanted
                if present in (b"", wanted):
                    return row, not present
        return self._rows, False

    def add(self, row: int, count: int) -> None:
        with self._lock:
            self._counts[self._column + row] += count

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for row in range(self._rows):
            if text := self._text(row):
                yield text.decode(errors="replace"), self._count(row)

    @property
    def others(self) -> int:
        """The counts of texts that had no row."""
        return self._count(self._rows)

    def _count(self, row: int) -> int:
        return sum(self._counts[row :: self._rows + 1])

    def _text(self, row: int) -> bytes:
        return bytes(self._texts[row * self._TEXT : (row + 1) * self._TEXT]).rstrip(b"\0")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among threads and processes."""
        with self._lock:
            with contextlib.suppress(OSError):  # a daemon closes the files that it inherits
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_UN)
