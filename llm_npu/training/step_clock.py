"""Duration of an optimizer step, and how much of it goes to waiting for data and for other ranks."""

from __future__ import annotations

import time
from typing import NamedTuple

import virtual_npu
from llm_npu.training.upstream_trainer import TrainerCallback


class StepTimes(NamedTuple):
    """Seconds of one step on this rank.

    ``step``: from the request for the first batch to the end of the step, without evaluation and checkpoints.
    ``data``: the part spent waiting for batches. ``communication``: collectives were in flight; ``exposed``:
    the program waited for them. The last two are unknown, and 0, on a card and on the CPU place.
    """

    step: float
    data: float
    communication: float
    exposed: float


class StepClock(TrainerCallback):
    """Times the steps of PaddleNLP's training loop by its callback events.

    The loop requests a batch once everything else is done, and fires an event when the batch arrives.
    """

    def __init__(self):
        self._idle_since = self._begin = time.perf_counter()
        self._data = self._last_wait = 0.0
        self._communication = virtual_npu.communication_time()

    def on_load_data_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._last_wait = now - self._idle_since
        self._data += self._last_wait
        self._idle_since = now  # the next wait, if this batch is skipped

    def on_step_begin(self, args, state, control, **kwargs):
        self._begin = time.perf_counter() - self._last_wait
        self._data = self._last_wait  # without the batches that --skip_data_intervals skipped
        self._communication = virtual_npu.communication_time()

    def take(self) -> StepTimes:
        """The times of the step that is ending."""
        communication = virtual_npu.communication_time().since(self._communication)
        return StepTimes(time.perf_counter() - self._begin, self._data, *communication)

    def _wait_begins(self, args, state, control, **kwargs):
        self._idle_since = time.perf_counter()

    on_epoch_begin = on_substep_end = on_step_end = on_log = on_evaluate = on_save = _wait_begins
