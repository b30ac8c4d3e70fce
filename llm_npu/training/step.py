"""The figures of an optimizer step, shared by all ranks at its end in one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llm_npu.core import ranks
from llm_npu.training.step_clock import StepTimes
from llm_npu.training.stock_trainer import TrainerCallback


@dataclass(frozen=True)
class FinishedStep:
    """One optimizer step of the whole run, over all ranks.

    ``loss``: mean over its labels, in nats per token. ``tokens``: sum over all samples. ``memory``: peak of
    the fullest device, in bytes. ``signal``: the signal that a rank has received, or 0. ``grad_norm``: of
    all gradients before clipping; None without clipping. ``times``: the longest step and data wait, and the
    mean communication.
    """

    loss: float
    tokens: int
    memory: int
    times: StepTimes
    signal: int = 0
    grad_norm: float | None = None

    @classmethod
    def of(cls, rows: np.ndarray, data_ranks: int) -> FinishedStep:
        """From one row (loss, tokens, memory, signal, norm or NaN, *StepTimes) per rank.

        ``data_ranks`` of the ranks read different samples; every other rank reads the samples of one of them.
        """
        loss, tokens, memory, received, norm, step, data, communication, exposed = rows.T
        return cls(
            loss=float(loss.mean()),
            tokens=round(tokens.sum() * data_ranks / len(rows)),
            memory=int(memory.max()),
            times=StepTimes(step.max(), data.max(), communication.mean(), exposed.mean()),
            signal=int(received.max()),
            grad_norm=None if np.isnan(norm).all() else float(norm[0]),
        )


class StepSync(TrainerCallback):
    """Calls ``listen(FinishedStep)`` at the end of every step; ``own`` returns this rank's row."""

    def __init__(self, own: Callable[[], Sequence[float]], listen: Callable[[FinishedStep], None]):
        self._own = own
        self._listen = listen

    def on_step_end(self, args, state, control, **kwargs):
        self._listen(FinishedStep.of(ranks.table(self._own()), args.dataset_world_size))
