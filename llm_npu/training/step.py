"""The figures of an optimizer step, shared by all ranks at its end in one collective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_npu.core import ranks
from llm_npu.training.step_clock import StepTimes
from llm_npu.training.upstream_trainer import TrainerCallback


@dataclass(frozen=True)
class FinishedStep:
    """One optimizer step of the whole run, over all ranks.

    ``loss``: mean over its labels, in nats per token. ``tokens``: sum over all samples. ``memory``: peak of
    the fullest device, in bytes. ``signal``: the signal that a rank has received, or 0. ``grad_norm``: of all
    gradients before clipping; None without clipping. ``times``: the longest step and data wait, and the mean
    communication. ``skipped``: the weights were left as they were, because a number was not finite.
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

        ``names`` are those of the figures. ``data_ranks`` of the ranks read different samples; every other
        rank reads the samples of one of them.
        """
        loss, tokens, memory, received, norm, skipped, step, data, communication, exposed, *figures = rows.T
        return cls(
            loss=float(loss.mean()),
            tokens=round(tokens.sum() * data_ranks / len(rows)),
            memory=int(memory.max()),
            times=StepTimes(step.max(), data.max(), communication.mean(), exposed.mean()),
            signal=int(received.max()),
            grad_norm=None if np.isnan(norm).all() else float(norm[0]),
            figures={name: float(figure.mean()) for name, figure in zip(names, figures, strict=True)},
            skipped=bool(skipped.any()),
        )


class StepSync(TrainerCallback):
    """Calls ``listen(FinishedStep)`` at the end of every step; ``own`` returns this rank's row.

    ``names``: those of the figures at the end of the row.
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
