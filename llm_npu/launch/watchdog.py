"""Watches the ranks of a run that ``--nproc`` has started: they end, fail, or are stopped.

Rank 0 has the terminal, and every other rank a log file. A signal reaches each rank once, so that they save
one checkpoint together. When a rank fails, the watchdog ends the others and shows the end of its log. A rank
stopped by SIGSTOP would block the others for ever, even where they cannot notice it, so it counts as lost
after ``STOPPED`` seconds. A run therefore ends within ``STOPPED + ENDING`` seconds after a rank is stopped,
and within ``ENDING`` seconds after one is killed.

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

ENDING = 3.0  # seconds for the other ranks to end by themselves when one has failed
LOOK = 0.5  # seconds between two looks at the running ranks
STOPPED = 4.0  # seconds that a rank may be stopped
SHOWN = 4000  # characters shown of a failed rank's log
BAD_INPUT = 2

Explainer = Callable[[Path, int, str], str]


def _unexplained(log: Path, start: int, end: str) -> str:
    return ""


class End(NamedTuple):
    """How a run has ended; ``by_fault``: not by itself, not by a signal to it, and not by bad input."""

    code: int
    by_fault: bool


class Watch:
    """Watches the processes of all ranks.

    ``logs``: the folder of the log files of ranks 1 and up. ``refused``: the ranks' sentences about bad
    input. ``explained(log, start, end)`` explains a failure from a rank's log, read from byte ``start``, and
    from the sentence ``end`` about how the rank ended. SIGINT and SIGTERM are for the ranks from the first
    moment on; ``received`` is the last such signal.
    """

    def __init__(self, logs: Path, explained: Explainer = _unexplained):
        self.logs, self.explained = logs, explained
        self.begun: dict[Path, int] = {}  # the byte at which a restarted rank's part of its log begins
        self.refused = refusal.Sentences()
        self.processes: list = []
        self.received: int | None = None
        self.failed: int | None = None  # the first rank that failed
        self.stopped: int | None = None  # the rank that was stopped and did not continue
        stopping.subscribe(self.forward)

    def until_end(self, processes: Sequence) -> End:
        """Wait for all ranks; the exit code is that of the first rank to fail, else of rank 0."""
        self.processes, self.failed, self.stopped = list(processes), None, None
        if self.received is not None:  # while they were being started
            self._signal(self.received)
        running, poll = {}, select.poll()
        for rank, process in enumerate(self.processes):
            descriptor = os.pidfd_open(process.pid)
            running[descriptor] = rank
            poll.register(descriptor, select.POLLIN)
        deadlines: list[tuple[float, signal.Signals]] = []
        seen: Counter[int] = Counter()  # in how many consecutive looks each rank was stopped
        while running:
            wait = min(LOOK, deadlines[0][0] - time.monotonic()) if deadlines else LOOK
            ended = [descriptor for descriptor, _ in poll.poll(max(0.0, wait) * 1000)]
            if deadlines and time.monotonic() >= deadlines[0][0]:
                self._signal(deadlines.pop(0)[1])
            for descriptor in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                rank = running.pop(descriptor)
                if self.processes[rank].wait() != 0 and self.failed is None and not self._obeyed(rank):
                    self.failed = rank
                    deadlines = self._end_others(refused=self.processes[rank].returncode == BAD_INPUT)
            if not ended and self.failed is None:
                self.failed = self.stopped = self._lost(seen)
                if self.stopped is not None:
                    deadlines = self._end_others()
        return self._conclusion()

    def forward(self, number, frame) -> None:
        """The signal handler: passes the signal on to the ranks."""
        self.received = number
        self._signal(number)

    def _obeyed(self, rank: int) -> bool:
        """Whether the rank has ended because of the received signal, as all ranks do."""
        if self.received is None:
            return False
        return _exit_code(self.processes[rank].returncode) == 128 + self.received

    def _lost(self, seen: Counter[int]) -> int | None:
        """A rank that was stopped in each of the last looks. Stopping all ranks is a pause, not a loss.

        Looks are counted, not seconds, because none takes place while this process is stopped itself.
        """
        stopped = [
            rank
            for rank, process in enumerate(self.processes)
            if process.poll() is None and _state(process.pid) == "T"  # "t": held by a debugger
        ]
        for rank in set(seen) - set(stopped):
            del seen[rank]
        if len(stopped) < len(self.processes):
            seen.update(stopped)
        return next((rank for rank in stopped if seen[rank] * LOOK >= STOPPED), None)

    def _end_others(self, refused: bool = False) -> list[tuple[float, signal.Signals]]:
        """When to send which signal to the other ranks; those about to refuse the same input get time to."""
        now = time.monotonic() + (ENDING if refused else 0.0)
        return [(now, signal.SIGTERM), (now + ENDING, signal.SIGKILL)]

    def _conclusion(self) -> End:
        if self.failed is None:
            return End(_exit_code(self.processes[0].returncode), by_fault=False)
        returned, file = self.processes[self.failed].returncode, self._log(self.failed)
        code = _exit_code(returned)
        how = f"ended with exit code {code}"
        if self.stopped is not None:
            code, how = 128 + signal.SIGSTOP, f"was stopped, and did not go on within {STOPPED:g} seconds"
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
        self.begun = {log: log.stat().st_size for log in self.logs.glob("workerlog.*")}
        return End(code, by_fault=code != BAD_INPUT and self.received is None)

    def _explain(self, file: Path, how: str) -> None:
        if sentences := self.explained(file, self.begun.get(file, 0), f"rank {self.failed} {how}"):
            print(sentences, file=sys.stderr)

    def _log(self, rank: int) -> Path:
        return self.logs / f"workerlog.{rank}"

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                deaf = self.failed is not None and _state(process.pid) in "Tt"  # it cannot act on SIGTERM
                os.kill(process.pid, signal.SIGKILL if deaf else number)


def _state(pid: int) -> str:
    """The kernel's letter for the state of a child that has not been waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _exit_code(returned: int) -> int:
    """As in a shell: 128 + n for a process that signal n ended."""
    return 128 - returned if returned < 0 else returned


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-SHOWN:].rstrip() if file.exists() else "(nothing was written)"
