"""Warns about each line of a program that uses float64, which a card would run on its AICPU.

The plugin imports this module in every process that loads it, and calls ``start``.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import fcntl
import functools
import mmap
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType

from . import group_order, source_lines
from .activation import loaded_plugin
from .host_fallbacks import HostFallback, warn_of_fallbacks
from .settings import warned_kernels
from .source_lines import Source

MOST = 10  # maximum number of warnings of a process and its forks
PROCESSORS = {"aicpu": "its AICPU", "host": "its host"}
OFF = "VIRTUAL_NPU_AICPU_WARNINGS=0 turns this off"


class AICPUWarning(UserWarning):
    """A card would run an operator on its AICPU or on the host, not on its cores, because of its dtype."""


class AICPUWarnings:
    """Counts calls, and warns once per kernel, dtype and program line, at most ``MOST`` times.

    Rank 0 shows the warnings; other ranks only count. An error filter raises on every rank. Ignored warnings
    are not counted. ``note`` is appended to the summary.
    """

    def __init__(self, note: str = OFF):
        self._note = note
        self._sites = SharedCounts(MOST)
        self._filters: list = []  # the filters for which the known rows are neither errors nor ignored
        self._rows: dict[tuple, int] = {}
        self._process = os.getpid()

    def is_known(self, site: int, frame: FrameType | None) -> bool:
        """Counts a call if its instruction has caused a warning before. Fast, because most calls end here."""
        while frame is not None:
            role = _role(frame.f_code)
            if role is _Role.PROGRAM:
                row = self._rows.get((site, frame.f_code, frame.f_lasti))
                if row is None or warnings.filters != self._filters:
                    return False
                self._sites.add(row, 1)
                return True
            if role is _Role.RUNNER:
                return False
            frame = frame.f_back
        return False

    def warn(self, fallback: HostFallback, frame: FrameType | None, site: int = 0) -> None:
        """Counts a call from ``frame`` and warns the first time. Raises AICPUWarning if a filter requires it.

        ``site`` identifies later calls in ``is_known``; 0 for none.
        """
        responsible = responsible_line(fallback, frame)
        if responsible is None:
            return
        source, caller = responsible
        row = self.warn_at(fallback, source, caller.f_globals.get("__name__") if caller else None)
        if site and row is not None and caller is not None:
            self._rows[site, caller.f_code, caller.f_lasti] = row

    def warn_at(self, fallback: HostFallback, source: Source, module: str | None = None) -> int | None:
        """Like ``warn``, for a call with a known responsible line and module.

        Returns the row of the counts, or None if a filter ignores the warning.
        """
        module = module or source.file.removesuffix(".py")  # as in warnings.warn_explicit
        if warnings.filters != self._filters:
            self._filters = list(warnings.filters)
            self._rows.clear()
        text = message(fallback)
        action = _action(text, module, source.line)
        if action == "error":
            raise AICPUWarning(f"{text} ({source})")
        if action == "ignore":
            return None
        row, is_new = self._sites.find(f"{fallback.kernel} {fallback.dtype}, {source}")
        self._sites.add(row, fallback.count)
        if is_new and row < MOST and _rank() == 0:
            warnings.warn_explicit(text, AICPUWarning, source.file, source.line, module)
        return row

    def summary(self) -> str:
        """The counts as text, or "" without calls."""
        sites = sorted(self._sites, key=lambda site: -site[1])
        calls = sum(count for _, count in sites) + self._sites.others
        if not calls:
            return ""
        number = f"more than {MOST}" if self._sites.others else str(len(sites))
        what = f"{calls:,} kernel calls at {number} sites would leave the cores of a card"
        if rank := _rank():
            return f"rank {rank}: {what}, most of them at {sites[0][0]}"
        rows = [f"    {count:,} x {text}" for text, count in sites]
        if self._sites.others:
            rows.append(f"    {self._sites.others:,} x at other sites")
        return "\n".join([f"{what} ({self._note}):", *rows])

    def print_summary(self) -> None:
        """Prints the summary to stderr, except in a forked process."""
        text = self.summary() if os.getpid() == self._process else ""
        if text and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                print(f"AICPU: {text}", file=sys.stderr, flush=True)


def message(fallback: HostFallback) -> str:
    """The text of the warning: the kernel, where a card would run it, and the fix."""
    shape = "" if fallback.shape is None else f" {list(fallback.shape)}"
    where = PROCESSORS[fallback.placement]
    what = f"{fallback.kernel} for {fallback.dtype}{shape}"
    return f"a card would run {what} on {where}, much slower than on its cores; {fallback.fix}"


class SharedCounts:
    """Counts of up to ``rows`` texts, shared with forked processes such as the workers of a DataLoader."""

    _TEXT = 504  # bytes
    _PROCESSES = 16  # processes with a separate column of counts; further processes share the last one

    def __init__(self, rows: int):
        self._rows = rows
        columns = 8 * self._PROCESSES * (rows + 1)  # the last row counts other texts
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
        """The row of the text, and whether it is new. Texts beyond ``rows`` share the last row."""
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
        """The counts of texts without a row."""
        return self._count(self._rows)

    def _count(self, row: int) -> int:
        return sum(self._counts[row :: self._rows + 1])

    def _text(self, row: int) -> bytes:
        return bytes(self._texts[row * self._TEXT : (row + 1) * self._TEXT]).rstrip(b"\0")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock shared by threads and processes."""
        with self._lock:
            with contextlib.suppress(OSError):  # daemons close inherited files
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_UN)


class _Role(enum.Enum):
    """The role of a frame among the callers of a kernel."""

    LIBRARY = enum.auto()
    RUNNER = enum.auto()  # runs captured programs
    PROGRAM = enum.auto()


@functools.lru_cache(maxsize=4096)
def _role(code: CodeType) -> _Role:
    if source_lines.runs_programs(code):
        return _Role.RUNNER
    is_library = source_lines.is_inside(code.co_filename, source_lines.LIBRARIES)
    return _Role.LIBRARY if is_library else _Role.PROGRAM


def responsible_line(
    fallback: HostFallback, frame: FrameType | None
) -> tuple[Source, FrameType | None] | None:
    """The responsible line of the program, and its frame if it is running; None without lines of the program.

    - A captured program: the line that created the operator.
    - A thread without lines of the program: the line that the main thread executes.
    - Otherwise: a line of a model library.
    """
    program = source_lines.program_of_frame(frame)
    if program is not None and (source := _line_in_program(program, fallback)):
        return source, None
    for packages in (source_lines.LIBRARIES, source_lines.FRAMEWORKS):
        if frame_and_line := source_lines.caller(frame, packages) or source_lines.caller(
            _main_frame(), packages
        ):
            return frame_and_line[1], frame_and_line[0]
    return None


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident)


def _line_in_program(program, fallback: HostFallback) -> Source | None:
    """The line of the operator that runs this kernel; among several, one with a tensor of that shape."""
    operators = _operators_in(program).get(fallback.kernel, ())
    wanted = fallback.dtype, fallback.shape
    same = [source for source, tensors in operators if wanted in tensors]
    same = same or [source for source, tensors in operators if wanted[0] in (dtype for dtype, _ in tensors)]
    return same[0] if same else None


@functools.lru_cache(maxsize=16)
def _operators_in(program) -> dict[str, list[tuple[Source, set[tuple[str, tuple[int, ...]]]]]]:
    """The operators of a PIR program by kernel: the line, and the dtypes and shapes of the tensors."""
    by_kernel: dict[str, list] = {}
    for operator in source_lines.operators(program.global_block()):
        source = source_lines.of_callstack(operator.callstack, source_lines.LIBRARIES)
        if source is not None:
            values = [*operator.operands_source(), *operator.results()]
            tensors = {
                (str(value.dtype).rpartition(".")[2].lower(), tuple(value.shape))
                for value in values
                if value.initialized() and value.is_dense_tensor_type()
            }
            kernel = operator.name().removeprefix("pd_op.").removesuffix("_")
            by_kernel.setdefault(kernel, []).append((source, tensors))
    return by_kernel


def _action(text: str, module: str, line: int) -> str:
    """The action of Python's warning filters, as in ``warnings.warn_explicit``."""
    for action, about, category, where, at in warnings.filters:
        if (
            issubclass(AICPUWarning, category)
            and (about is None or about.match(text))
            and (where is None or where == module or (hasattr(where, "match") and where.match(module)))
            and at in (0, line)
        ):
            return action
    return warnings.defaultaction


def _rank() -> int:
    return int(os.environ.get("PADDLE_TRAINER_ID") or 0)


def start() -> None:
    """Warns until the process exits, and watches the order of process groups.

    The plugin calls it while paddle is imported, unless VIRTUAL_NPU_AICPU_WARNINGS=0.
    """
    group_order.watch()
    site_warnings = AICPUWarnings()
    atexit.register(site_warnings.print_summary)
    warn_of_fallbacks(site_warnings, every=warned_kernels() == "host")


def stop_aicpu_warnings() -> None:
    """Stops the virtual NPU's own warnings, for programs with their own dtype checks."""
    if loaded_plugin() is not None:
        warn_of_fallbacks(None)
