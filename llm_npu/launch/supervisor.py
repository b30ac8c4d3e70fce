"""Supervises the rank processes started by ``--nproc``: normal exits, failures and stops.

Rank 0 has the terminal, and every other rank a log file. A signal is forwarded to each rank once, so that the
ranks save one checkpoint together. When a rank fails, the supervisor ends the others and prints the end of
the failed rank's log. A rank stopped by SIGSTOP would block the others forever without an error, so it
counts as lost after ``STOPPED_LIMIT`` seconds. A run therefore ends within ``STOPPED_LIMIT + GRACE``
seconds after a rank is stopped, and within ``GRACE`` seconds after one is killed.

A rank that hangs while running is not detected here but in the collectives that wait for it: on the virtual
NPU by virtual_npu/csrc/collectives/watchdog.cc, on a card by HCCL. docs/design/index.md describes the
sequence of events.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from llm_npu.core import refusal, stopping
from llm_npu.core.untrusted.plain_text import LAYOUT, printable

GRACE = 3.0  # seconds between SIGTERM and SIGKILL to the other ranks when one has failed
POLL_INTERVAL = 0.5  # seconds between two checks of the running ranks
STOPPED_LIMIT = 4.0  # seconds after which a stopped rank counts as lost
LOG_TAIL = 4000  # bytes shown of a failed rank's log
BAD_INPUT = 2

Explainer = Callable[[Path, int, str], str]


def _no_explanation(log: Path, start: int, end: str) -> str:
    return ""


class Outcome(NamedTuple):
    """How a run ended. ``by_fault``: not normally, by a signal to the run, or by bad input."""

    code: int
    by_fault: bool


class Supervisor:
    """Supervises the processes of all ranks.

    Args:
        logs: The folder of the log files of ranks 1 and up.
        explained: ``explained(log, start, end)`` explains a failure from a rank's log, read from byte
            ``start``, and from the message ``end`` about how the rank ended.

    The signals of ``stopping`` are forwarded to the ranks; ``received`` is the last one.
    """

    def __init__(self, logs: Path, explained: Explainer = _no_explanation):
        self.logs, self.explained = logs, explained
        self.log_offsets: dict[Path, int] = {}  # start of a restarted rank's part of its log, in bytes
        self.refused = refusal.Sentences()
        self.processes: list = []
        self.received: int | None = None
        self.failed: int | None = None  # the first rank that failed
        self.stopped: int | None = None  # the rank that was stopped and not continued
        stopping.subscribe(self.forward)

    def until_end(self, processes: Sequence) -> Outcome:
        """Wait for all ranks. Returns the exit code of the first failed rank, else of rank 0."""
        self.processes, self.failed, self.stopped = list(processes), None, None
        if self.received is not None:  # while the ranks were being started
            self._signal(self.received)
        running, poll = {}, select.poll()
        for rank, process in enumerate(self.processes):
            descriptor = os.pidfd_open(process.pid)
            running[descriptor] = rank
            poll.register(descriptor, select.POLLIN)
        deadlines: list[tuple[float, signal.Signals]] = []
        seen: Counter[int] = Counter()  # number of consecutive checks in which each rank was stopped
        while running:
            wait = min(POLL_INTERVAL, deadlines[0][0] - time.monotonic()) if deadlines else POLL_INTERVAL
            ended = [descriptor for descriptor, _ in poll.poll(max(0.0, wait) * 1000)]
            if deadlines and time.monotonic() >= deadlines[0][0]:
                self._signal(deadlines.pop(0)[1])
            for descriptor in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                rank = running.pop(descriptor)
                failed = self.processes[rank].wait() != 0 and not self._ended_by_signal(rank)
                if failed and self.failed is None:
                    self.failed = rank
                    deadlines = self._end_others(refused=self.processes[rank].returncode == BAD_INPUT)
            if not ended and self.failed is None:
                self.failed = self.stopped = self._suspended_rank(seen)
                if self.stopped is not None:
                    deadlines = self._end_others()
        return self._outcome()

    def forward(self, number, frame) -> None:
        """Signal handler that forwards the signal to the ranks."""
        self.received = number
        self._signal(number)

    def _ended_by_signal(self, rank: int) -> bool:
        """Whether the rank exited because of the received signal."""
        if self.received is None:
            return False
        return _exit_code(self.processes[rank].returncode) == 128 + self.received

    def _suspended_rank(self, seen: Counter[int]) -> int | None:
        """A rank that has been stopped for ``STOPPED_LIMIT``. Stopping all ranks is a pause, not a loss.

        Counts checks instead of seconds, because none takes place while this process is itself stopped.
        """
        stopped = [
            rank
            for rank, process in enumerate(self.processes)
            if process.poll() is None and _state(process.pid) == "T"  # "t" means stopped by a debugger
        ]
        for rank in set(seen) - set(stopped):
            del seen[rank]
        if len(stopped) < len(self.processes):
            seen.update(stopped)
        return next((rank for rank in stopped if seen[rank] * POLL_INTERVAL >= STOPPED_LIMIT), None)

    def _end_others(self, refused: bool = False) -> list[tuple[float, signal.Signals]]:
        """[(time, signal)] for the other ranks; they get time to report the same bad input themselves."""
        now = time.monotonic() + (GRACE if refused else 0.0)
        return [(now, signal.SIGTERM), (now + GRACE, signal.SIGKILL)]

    def _outcome(self) -> Outcome:
        if self.failed is None:
            return Outcome(_exit_code(self.processes[0].returncode), by_fault=False)
        returned, file = self.processes[self.failed].returncode, self._log(self.failed)
        code = _exit_code(returned)
        how = f"ended with exit code {code}"
        if self.stopped is not None:
            code = 128 + signal.SIGSTOP
            how = f"was stopped and not continued within {STOPPED_LIMIT:g} seconds"
        elif returned < 0:
            how = f"was killed by {signal.Signals(-returned).name}"
        if code == BAD_INPUT and (sentence := self.refused.first()):
            refusal.say(sentence)
        elif self.failed != 0 and not (code == BAD_INPUT and self.processes[0].returncode == BAD_INPUT):
            print(f"rank {self.failed} {how}; the end of {file}:\n{_tail(file)}", file=sys.stderr)
            self._explain(file, how)
        elif self.stopped is not None or returned < 0:
            print(f"rank 0 {how}", file=sys.stderr)
            self._explain(Path(os.devnull), how)
        self.log_offsets = {log: log.stat().st_size for log in self.logs.glob("workerlog.*")}
        return Outcome(code, by_fault=code != BAD_INPUT and self.received is None)

    def _explain(self, file: Path, how: str) -> None:
        if sentences := self.explained(file, self.log_offsets.get(file, 0), f"rank {self.failed} {how}"):
            print(sentences, file=sys.stderr)

    def _log(self, rank: int) -> Path:
        return self.logs / f"workerlog.{rank}"

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                # A stopped process cannot handle SIGTERM.
                suspended = self.failed is not None and _state(process.pid) in "Tt"
                os.kill(process.pid, signal.SIGKILL if suspended else number)


def _state(pid: int) -> str:
    """The kernel's letter for the state of a child that has not been waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _exit_code(returned: int) -> int:
    """The exit code as in a shell: 128 + n for a process killed by signal n."""
    return 128 - returned if returned < 0 else returned


def _tail(file: Path) -> str:
    if not file.exists():
        return "(nothing was written)"
    with file.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
        return printable(log.read().decode(errors="replace").rstrip(), keep=LAYOUT)
