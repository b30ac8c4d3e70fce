"""What all processes learn of an optimizer step at its end, in one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from paddlenlp.trainer import TrainerCallback

from llm_npu.core import ranks
from llm_npu.training.step_clock import StepTimes


@dataclass(frozen=True)
class Step:
    """A finished step of the whole run.

    ``loss``: the mean over its labels, in nats per token. ``tokens``: those of all samples. ``memory``: the
    most that one device held at once, in bytes. ``signal``: the number of the signal that some process has
    received, or 0. ``grad_norm``: of all gradients before they are clipped; None if they are not. ``times``:
    the longest step and wait for data, and the mean communication.
    """

    loss: float
    tokens: int
    memory: int
    times: StepTimes
    signal: int = 0
    grad_norm: float | None = None

    @classmethod
    def of(cls, rows: np.ndarray, data_ranks: int) -> Step:
        """Of the rows (loss, tokens, memory, signal, norm or NaN, *StepTimes) of all processes.

        ``data_ranks`` of them have samples of their own; each of the others repeats what one of these has.
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
    """Ends every step with ``listen(Step)``; ``own`` gives this process's row for `Step.of`."""

    def __init__(self, own: Callable[[], Sequence[float]], listen: Callable[[Step], None]):
        self._own = own
        self._listen = listen

    def on_step_end(self, args, state, control, **kwargs):
        self._listen(Step.of(ranks.table(self._own()), args.dataset_world_size))
