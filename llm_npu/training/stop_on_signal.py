"""Ctrl-C, SIGTERM and SIGHUP during training: the run ends after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from llm_npu.core import ranks, stopping
from llm_npu.training import checkpoint
from llm_npu.training.upstream_trainer import TrainerCallback


class StopOnSignal(TrainerCallback):
    """Ends the training after the current step, with a checkpoint, when a signal of ``stopping`` arrives.

    It handles the signals from ``on_train_begin`` to ``restore``. A second signal ends the process at once
    and without another checkpoint; a line says so, and names the last complete one. paddle.distributed.launch
    sends SIGTERM up to three times within a second, to one rank after the other, and also where it has a
    single one; a closed terminal and its shell both send SIGHUP. So all but Ctrl-C, and with several ranks
    any signal, counts as the same one within ``REPEATED`` seconds of the first, and all ranks stop after the
    step in which one received it.
    """

    REPEATED = 3.0  # seconds

    def __init__(self):
        self.pending: signal.Signals | None = None  # received by this rank
        self.agreed: signal.Signals | None = None  # known to all ranks
        self._unsubscribe: Callable[[], None] | None = None
        self._since = 0.0

    @property
    def received(self) -> signal.Signals | None:
        """The signal that ends the training."""
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
        """Return the signals to their former handlers."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            stopping.reached("after the last step")

    def _receive(self, number, frame):
        name, may_repeat = signal.Signals(number).name, number != signal.SIGINT or ranks.count() > 1
        if self._since and not (may_repeat and time.monotonic() - self._since <= self.REPEATED):
            stopping.end_at_once(number, self._abandoned(name))
        if not self._since and ranks.is_first():
            stopping.print_now(
                f"{name}: the run ends after this step, with a checkpoint; another ends it now"
            )
        self._since = self._since or time.monotonic()
        self.pending = self.pending or signal.Signals(number)

    def _abandoned(self, name: str) -> str:
        complete = checkpoint.complete(self._output_dir)
        kept = f"{complete[-1]} is the last complete checkpoint" if complete else "there is no checkpoint"
        return f"stopped by a second {name}, before the step was finished and saved; {kept}"
