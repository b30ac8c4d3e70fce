"""Ctrl-C and SIGTERM during training: the run ends after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from llm_npu.core import ranks, stopping
from llm_npu.training.stock_trainer import TrainerCallback


class StopOnSignal(TrainerCallback):
    """Ends the training after the current step, with a checkpoint, when Ctrl-C or SIGTERM arrives.

    It handles the signals from ``on_train_begin`` to ``restore``. A second signal ends the process at once;
    checkpoints stay complete even then. paddle.distributed.launch sends SIGTERM up to three times within a
    second, to one rank after the other, and also where it has a single one. So SIGTERM, and with several
    ranks any signal, counts as the same one within ``REPEATED`` seconds of the first, and all ranks stop
    after the step in which one received it.
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
        may_repeat = number == signal.SIGTERM or ranks.count() > 1
        if self._since and not (may_repeat and time.monotonic() - self._since <= self.REPEATED):
            stopping.end_at_once(number)
        self._since = self._since or time.monotonic()
        self.pending = self.pending or signal.Signals(number)
