"""Ends a run after its last step, after ``--exit_duration_in_mins``, or after a signal.

In each case a checkpoint of the last step is saved.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from llm_npu.core import ranks, stopping
from llm_npu.core.ranks import Ranks
from llm_npu.training import checkpoint
from llm_npu.training.upstream_trainer import TrainerCallback


class StopOnSignal(TrainerCallback):
    """Ends training after the current step, with a checkpoint, on Ctrl-C, SIGTERM or SIGHUP.

    It handles the signals from ``on_train_begin`` to ``restore``. All ranks stop after the step in which a
    rank received a signal. A second signal ends the process at once without another checkpoint and reports
    the last complete checkpoint.

    Launchers repeat signals: paddle.distributed.launch sends SIGTERM to one rank after the other, up to three
    times within a second; a closed terminal and its shell both send SIGHUP. A repeated signal within
    ``REPEATED`` seconds is ignored, except for Ctrl-C in a run with one rank.
    """

    REPEATED = 3.0  # seconds

    def __init__(self):
        self.pending: signal.Signals | None = None  # received by this rank
        self.agreed: signal.Signals | None = None  # known to all ranks
        self._unsubscribe: Callable[[], None] | None = None
        self._since = 0.0

    @property
    def received(self) -> signal.Signals | None:
        """The signal that ends training."""
        return self.agreed or (self.pending if ranks.count() == 1 else None)

    def on_train_begin(self, args, state, control, **kwargs):
        self._output_dir = args.output_dir
        self._unsubscribe = stopping.subscribe(self._receive)

    def on_step_end(self, args, state, control, **kwargs):
        if self.received:
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            stopping.reached("after the last step")

    def _receive(self, number, frame):
        name, may_repeat = signal.Signals(number).name, number != signal.SIGINT or ranks.count() > 1
        if self._since and not (may_repeat and time.monotonic() - self._since <= self.REPEATED):
            stopping.end_at_once(number, self._abandoned_step(name))
        if not self._since and ranks.is_first():
            stopping.print_now(
                f"{name}: stopping after this step, with a checkpoint; a second signal stops now"
            )
        self._since = self._since or time.monotonic()
        self.pending = self.pending or signal.Signals(number)

    def _abandoned_step(self, name: str) -> str:
        complete = checkpoint.complete(self._output_dir)
        last = f"{complete[-1]} is the last complete checkpoint" if complete else "there is no checkpoint"
        return f"stopped by a second {name}, before the step was finished and saved; {last}"


class SaveAtLastStep(TrainerCallback):
    """Logs, evaluates and saves at the last step, even if it is not a multiple of the intervals.

    A run that ends because of ``exit_duration_in_mins`` only saves.
    """

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_log = True
            control.should_evaluate = args.do_eval
            control.should_save = True
        elif args.exit_duration_in_mins is not None:
            # Rank 0 decides: the ranks' clocks started at different times.
            time_is_up = Ranks.of_run().from_first(_process_seconds() >= 60 * args.exit_duration_in_mins)
            if time_is_up:
                control.should_evaluate = False
                control.should_save = control.should_training_stop = True


def _process_seconds() -> float:
    """The age of this process in seconds."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19])  # clock ticks after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
