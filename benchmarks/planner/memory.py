"""Published memory of ranks beside its prediction, and whether runs that ran are said to fit."""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.core.cards import card
from llm_npu.plan.answer import usable
from llm_npu.plan.memory_model import megatron

from .published import Point, with_memory


@dataclass(frozen=True)
class PredictedMemory:
    """A published run and the ``predicted`` bytes of each of its ranks after the first step."""

    point: Point
    predicted: tuple[float, ...]

    @property
    def error(self) -> float:
        """Relative error of the fullest rank."""
        return max(self.predicted) / max(self.point.memory) - 1


def predicted_memory(half: str) -> list[PredictedMemory]:
    """The runs of a half with a published memory of every rank."""
    return [PredictedMemory(point, _of_ranks(point)) for point in with_memory(half)]


def _of_ranks(point: Point) -> tuple[float, ...]:
    stages = megatron.ranks(point.shape, point.layout, point.software, point.dtype, point.reuses)
    cards = point.layout.cards // len(stages)
    return tuple(stages[rank // cards].first_peak for rank in point.ranks)


def fits(point: Point) -> bool:
    """Whether a published run is said to fit its card."""
    memory = megatron.peak(point.shape, point.layout, point.software).peak_memory_bytes
    return memory <= usable(card(point.card), point.layout)
