"""Forces the same choice of experts in every run of a comparison.

Rounding may decide which of two nearly equal experts a router chooses, and another expert's result differs by
far more than rounding. So the second way reuses the choices of the first, and reports how many of its own
would have been different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import paddle

from llm_npu.core.errors import UserError


class Choices:
    """Records the results of ``paddle.topk``, which routers call, in one run and replays them in others.

    ``count``: rows of choices. ``otherwise``: how many of them the last run would have made differently.
    ValueError in a run that chooses more often, or with other shapes, than the first.
    """

    def __init__(self):
        self._made: list[np.ndarray] = []
        self._turn = 0
        self.otherwise = 0

    @property
    def count(self) -> int:
        return sum(int(np.prod(made.shape[:-1])) for made in self._made)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context in which choices are recorded."""
        with _topk(self._keep):
            yield

    @contextmanager
    def given(self) -> Iterator[None]:
        """Context in which the recorded choices are replayed in order."""
        self._turn = self.otherwise = 0
        with _topk(self._give):
            yield

    def _keep(self, x, axis: int, values, indices) -> tuple:
        self._made.append(indices.numpy())
        return values, indices

    def _give(self, x, axis: int, values, indices) -> tuple:
        own = indices.numpy()
        if self._turn == len(self._made) or own.shape != self._made[self._turn].shape:
            raise UserError(
                "The two ways do not choose experts equally often; compare them without mixtures."
            )
        made = self._made[self._turn]
        self._turn += 1
        self.otherwise += int((np.sort(own, axis) != np.sort(made, axis)).any(axis).sum())
        chosen = paddle.to_tensor(made, place=indices.place)
        return paddle.take_along_axis(x, chosen, axis, broadcast=False), chosen


@contextmanager
def _topk(answer: Callable[..., tuple]) -> Iterator[None]:
    """Context in which the results of ``paddle.topk`` pass through ``answer(x, axis, values, indices)``."""
    original = paddle.topk

    def topk(x, k, axis=None, *more, **options):
        return answer(x, -1 if axis is None else axis, *original(x, k, axis, *more, **options))

    paddle.topk = topk
    try:
        yield
    finally:
        paddle.topk = original
