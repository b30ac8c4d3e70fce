"""How long an optimizer step takes, and how much of it the process waits for data and for other processes."""

from __future__ import annotations

import time
from typing import NamedTuple

from paddlenlp.trainer import TrainerCallback

from paddle_fused import virtual_npu


class StepTimes(NamedTuple):
    """Seconds of one step in this process.

    ``step``: from the request for its first batch to its end, without evaluations and checkpoints.
    ``data``: of these, waiting for batches. ``communication``: collectives were under way; ``exposed``: the
    program waited for them. The last two are 0 where they are not known: on a card and on the CPU place.
    """

    step: float
    data: float
    communication: float
    exposed: float


class StepClock(TrainerCallback):
    """Times the steps of PaddleNLP's training loop by the events that it announces.

    The loop asks for a batch when everything else is done, and announces the batch when it is there.
    """

    def __init__(self):
        self._idle_since = self._begin = time.perf_counter()
        self._data = self._last_wait = 0.0
        self._communication = virtual_npu.communication_time()

    def on_load_data_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._last_wait = now - self._idle_since
        self._data += self._last_wait
        self._idle_since = now  # the next wait, if this batch is passed over

    def on_step_begin(self, args, state, control, **kwargs):
        self._begin = time.perf_counter() - self._last_wait
        self._data = self._last_wait  # without the batches that --skip_data_intervals has passed over
        self._communication = virtual_npu.communication_time()

    def take(self) -> StepTimes:
        """The times of the step that is about to end."""
        communication = virtual_npu.communication_time().since(self._communication)
        return StepTimes(time.perf_counter() - self._begin, self._data, *communication)

    def _wait_begins(self, args, state, control, **kwargs):
        self._idle_since = time.perf_counter()

    on_epoch_begin = on_substep_end = on_step_end = on_log = on_evaluate = on_save = _wait_begins
