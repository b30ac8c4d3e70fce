"""Metrics of an optimizer step (loss, tokens, memory, times) and of an evaluation, over all ranks.

All ranks exchange the metrics of a step at its end in one collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

import virtual_npu
from llm_npu.core import ranks
from llm_npu.training.upstream_trainer import TrainerCallback


class StepTimes(NamedTuple):
    """Seconds of one step on this rank.

    Attributes:
        step: From the request for the first batch to the end of the step, without evaluation and checkpoints.
        data: Time spent waiting for batches.
        communication: Time with collectives in flight.
        exposed: Time spent waiting for collectives.

    ``communication`` and ``exposed`` are not measured, and 0, on a card and on the CPU.
    """

    step: float
    data: float
    communication: float
    exposed: float


class StepClock(TrainerCallback):
    """Measures step times of PaddleNLP's training loop from its callback events.

    The loop requests a batch last, and fires an event when the batch arrives.
    """

    def __init__(self):
        self._idle_since = self._begin = time.perf_counter()
        self._data = self._last_wait = 0.0
        self._communication = virtual_npu.communication_time()

    def on_load_data_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._last_wait = now - self._idle_since
        self._data += self._last_wait
        self._idle_since = now  # start of the next wait, if this batch is skipped

    def on_step_begin(self, args, state, control, **kwargs):
        self._begin = time.perf_counter() - self._last_wait
        self._data = self._last_wait  # without the batches that --skip_data_intervals skipped
        self._communication = virtual_npu.communication_time()

    def take(self) -> StepTimes:
        """The times of the step that is about to end."""
        communication = virtual_npu.communication_time().since(self._communication)
        return StepTimes(time.perf_counter() - self._begin, self._data, *communication)

    def _wait_begins(self, args, state, control, **kwargs):
        self._idle_since = time.perf_counter()

    on_epoch_begin = on_substep_end = on_step_end = on_log = on_evaluate = on_save = _wait_begins


@dataclass(frozen=True)
class FinishedStep:
    """One optimizer step of the whole run, over all ranks.

    Attributes:
        loss: Mean over the labels of the step, in nats per token.
        tokens: Sum over all samples.
        memory: The highest peak of all devices, in bytes.
        times: The longest step and data wait, and the mean communication.
        signal: A signal received by any rank, or 0.
        grad_norm: Norm of all gradients before clipping; None without clipping.
        figures: Further mean values from the trainer.
        skipped: Whether the weights were left unchanged because of NaN or infinity.
    """

    loss: float
    tokens: int
    memory: int
    times: StepTimes
    signal: int = 0
    grad_norm: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    skipped: bool = False

    @classmethod
    def of(cls, rows: np.ndarray, data_ranks: int, names: Sequence[str] = ()) -> FinishedStep:
        """From one row (loss, tokens, memory, signal, norm or NaN, skipped, *StepTimes, *figures) per rank.

        ``data_ranks`` ranks read different samples; every other rank reads the same samples as one of them.
        ``names`` are the names of the figures.
        """
        loss, tokens, memory, received, norm, skipped, step, data, communication, exposed, *figures = rows.T
        return cls(
            loss=float(loss.mean()),
            tokens=round(tokens.sum() * data_ranks / len(rows)),
            memory=int(memory.max()),
            times=StepTimes(step.max(), data.max(), communication.mean(), exposed.mean()),
            signal=int(received.max()),
            grad_norm=None if np.isnan(norm).all() else float(norm[0]),
            figures={name: _mean(figure) for name, figure in zip(names, figures, strict=True)},
            skipped=bool(skipped.any()),
        )


def _mean(figure: np.ndarray) -> float:
    """The mean over the ranks that have the figure; NaN if none has."""
    known = figure[~np.isnan(figure)]
    return float(known.mean()) if known.size else float("nan")


class StepSync(TrainerCallback):
    """Calls ``listen(FinishedStep)`` at the end of every step.

    Args:
        own: Returns this rank's row.
        names: Names of the figures at the end of the row.
    """

    def __init__(
        self,
        own: Callable[[], Sequence[float]],
        listen: Callable[[FinishedStep], None],
        names: Sequence[str] = (),
    ):
        self._own = own
        self._listen = listen
        self._names = names

    def on_step_end(self, args, state, control, **kwargs):
        self._listen(FinishedStep.of(ranks.table(self._own()), args.dataset_world_size, self._names))


class EvaluationMean:
    """Weighted means of a loss and further figures over the samples of all ranks, independent of batching."""

    def __init__(self):
        self._totals: np.ndarray | float = 0.0
        self._weights: np.ndarray | float = 0.0

    def add(self, loss: float, figures: Sequence[float], weight: float) -> None:
        """Add a batch of total ``weight`` with these means; a figure of NaN was not measured on this rank."""
        if weight:
            means = np.array([loss, *figures], dtype=np.float64)
            known = ~np.isnan(means)
            known[0] = True  # the loss of a diverged model
            self._totals = self._totals + np.where(known, means, 0.0) * weight
            self._weights = self._weights + known * weight

    def over_all_ranks(self, count: int) -> list[float]:
        """The ``count`` means, identical on every rank; NaN for one that no rank measured. Collective."""
        own = [np.broadcast_to(part, count) for part in (self._totals, self._weights)]  # 0 if none was added
        totals, weights = np.split(ranks.table(np.concatenate(own)).sum(axis=0), 2)
        return np.divide(totals, weights, out=np.full(count, np.nan), where=weights > 0).tolist()
