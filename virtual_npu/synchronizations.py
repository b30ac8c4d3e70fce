"""Counts the host's waits for the device by program line, with VIRTUAL_NPU_CHECK=sync.

A wait drains the device: queued work finishes before the host continues, and the device idles until the next
launch. The plugin imports this module in every process that loads it, and calls ``start``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from . import source_lines
from .record import STEP_BEGINS, STEP_ENDS, mark_journal, plugin

MOST = 20  # lines of the table
# checks::Wait in virtual_npu/csrc/checks/synchronizations.h.
KINDS = (
    "copy to the host",
    "copy to the device",
    "synchronize device",
    "synchronize stream",
    "synchronize event",
    "kernel on the host",
)
TO_HOST, TO_DEVICE, DEVICE, STREAM, *_ = range(len(KINDS))
NO_LINE = "no line: a thread of Paddle, such as the DataLoader's or a static program's"
COST = (
    "    launches: queued since the previous wait (mean). A card finishes them before the host continues,\n"
    "    and idles until the next launch. Times are not estimated: they depend on the card."
)


class WaitLine(NamedTuple):
    """A line that waits, and the line of the program that called it if it is in a library."""

    kind: int
    line: str
    caller: str = ""


@dataclass
class Count:
    """Waits of one site, the launches that they drained, and the bytes that they copied."""

    waits: int = 0
    launches: int = 0
    bytes: int = 0

    def add(self, waits: int, launches: int, size: int) -> None:
        self.waits += waits
        self.launches += launches
        self.bytes += size


Counts = dict[WaitLine, Count]


class HostWaits:
    """Counts waits in steps and between steps, or in the whole run if the program marks no steps."""

    def __init__(self):
        self.steps = 0
        self.in_steps: Counts = {}
        self.between: Counts = {}
        self._now: Counts = {}  # since the last mark
        self._outermost = ""  # the program's line that runs the steps of a trainer
        self._last = threading.local()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def add(
        self, kind: int, launches: int, size: int, continues: bool, frame: FrameType | None
    ) -> WaitLine | None:
        """Counts a wait in ``frame`` and returns its site; None if it is part of a counted wait.

        ``continues``: this thread has launched nothing since its last wait. Paddle waits for the compute
        stream before and after a copy; together they are one wait.
        """
        site = self._site(kind, frame)
        last, drained = getattr(self._last, "wait", (None, 0))
        same_line = continues and not launches and last is not None and site[1:] == last[1:]
        is_copy = kind in (TO_HOST, TO_DEVICE)
        if (kind in (DEVICE, STREAM) and same_line) or (kind == TO_DEVICE and not same_line):
            return None
        with self._lock:
            if same_line and is_copy and last.kind in (DEVICE, STREAM):
                self._now[last].add(-1, -drained, 0)
                launches += drained
            self._now.setdefault(site, Count()).add(1, launches, size)
        self._last.wait = site, launches
        return site

    def add_without_line(self, kind: int, waits: int, launches: int, size: int) -> None:
        if waits:
            with self._lock:
                self._now.setdefault(WaitLine(kind, NO_LINE), Count()).add(waits, launches, size)

    def begin_step(self, frame: FrameType | None) -> None:
        """Waits before the first step are not reported."""
        self._outermost = _program_line(frame)
        self._move_to(self.between if self.steps else {})
        self.steps += 1

    def end_step(self) -> None:
        self._move_to(self.in_steps)

    def _move_to(self, counts: Counts) -> None:
        with self._lock:
            for site, count in self._now.items():
                counts.setdefault(site, Count()).add(count.waits, count.launches, count.bytes)
            self._now = {}
        self._last = threading.local()

    def _site(self, kind: int, frame: FrameType | None) -> WaitLine:
        caller = source_lines.caller(frame)
        line = _short(caller[1]) if caller else NO_LINE
        outer = _program_line(frame)
        return WaitLine(kind, line, "" if outer in (line, self._outermost) else outer)

    def table(self) -> str:
        """The counts as text, or "" without waits."""
        sections = {"": self.in_steps, "between steps": self.between} if self.steps else {"": self._now}
        sections = {title: _sorted(counts) for title, counts in sections.items()}
        waits = sum(count.waits for rows in sections.values() for _, count in rows)
        if not waits:
            return ""
        runs = max(self.steps, 1)
        where = f"in and between {self.steps:,} steps" if self.steps else "in the whole run"
        lines = [f"{waits:,} waits of the host for the device {where} (VIRTUAL_NPU_CHECK=sync)"]
        if rank := _rank():
            return f"rank {rank}: {lines[0]}"
        header = ("waits/step" if self.steps else "waits", "launches", "bytes", "kind", "line")
        cells = {title: [_cells(*row, runs) for row in rows[:MOST]] for title, rows in sections.items()}
        every = [header, *(row for rows in cells.values() for row in rows)]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        for number, (title, rows) in enumerate(cells.items()):
            if not rows:
                continue
            lines += [f"  {title}:"] * bool(title)
            lines += [_aligned(row, widths) for row in [header] * (number == 0 or len(lines) == 2) + rows]
            if len(sections[title]) > MOST:
                lines.append(f"    and {len(sections[title]) - MOST} other lines")
        return "\n".join([*lines, COST])

    def print_table(self) -> None:
        """Prints the table to stderr on rank 0 and a line on other ranks; not in a forked process."""
        if os.getpid() != self._process:
            return
        _take_waits_without_line(self)
        text = self.table()
        if text and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                print(f"host waits: {text}", file=sys.stderr, flush=True)


def _sorted(counts: Counts) -> list[tuple[WaitLine, Count]]:
    rows = [row for row in counts.items() if row[1].waits]
    return sorted(rows, key=lambda row: (-row[1].waits, -row[1].launches, row[0]))


def _cells(site: WaitLine, count: Count, runs: int) -> tuple[str, ...]:
    number = f"{count.waits / runs:,.2f}" if runs > 1 else f"{count.waits:,}"
    line = f"{site.line}, called at {site.caller}" if site.caller else site.line
    launches, size = round(count.launches / count.waits), round(count.bytes / count.waits)
    return number, f"{launches:,}", f"{size:,}", KINDS[site.kind], line


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
    return "    " + "  ".join([*numbers, row[3].ljust(widths[3]), row[4]])


def _program_line(frame: FrameType | None) -> str:
    """The innermost line outside Paddle and the libraries of models, or ""."""
    caller = source_lines.caller(frame, source_lines.LIBRARIES)
    return _short(caller[1]) if caller else ""


@functools.lru_cache(maxsize=4096)
def _short(source: source_lines.Source) -> str:
    """The line, with its file relative to the working folder or to site-packages."""
    file = re.sub(r".*/(site|dist)-packages/", "", source.file)
    with contextlib.suppress(ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{source.line} in {source.function}"


def _rank() -> int:
    return int(os.environ.get("PADDLE_TRAINER_ID") or 0)


_host_waits: HostWaits | None = None


@functools.cache
def _callback():
    """The function that the plugin calls. It stays referenced, because the plugin may call it at any time."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)

    def report(wait, size, launches, continues) -> None:
        site = _host_waits.add(wait, launches, size, bool(continues), sys._getframe().f_back)
        if site is not None:
            mark_journal(f"host waits: {KINDS[wait]}, {launches} launches, {size} bytes at {site.line}")

    return kind(report)


def _take_waits_without_line(host_waits: HostWaits) -> None:
    take = plugin().virtual_npu_take_synchronizations
    take.argtypes, take.restype = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)], None
    for kind in range(len(KINDS)):
        counts = (ctypes.c_uint64 * 3)()
        take(kind, counts)
        waits, size, launches = counts
        host_waits.add_without_line(kind, waits, launches, size)


def start() -> None:
    """Counts until the process exits. The plugin calls it while paddle is imported."""
    global _host_waits
    _host_waits = HostWaits()
    atexit.register(_host_waits.print_table)
    observe = plugin().virtual_npu_observe_synchronizations
    observe.argtypes, observe.restype = [ctypes.c_void_p], None
    observe(ctypes.cast(_callback(), ctypes.c_void_p))


def begin_step() -> None:
    """Marks the beginning of a training step for VIRTUAL_NPU_CHECK=sync and the journal.

    Does nothing without the virtual NPU. Raises OSError if the journal cannot be written.
    """
    if _host_waits is not None:
        _take_waits_without_line(_host_waits)
        _host_waits.begin_step(sys._getframe(1))
    mark_journal(STEP_BEGINS)


def end_step() -> None:
    """Marks the end of a training step. See ``begin_step``."""
    if _host_waits is not None:
        _take_waits_without_line(_host_waits)
        _host_waits.end_step()
    mark_journal(STEP_ENDS)
