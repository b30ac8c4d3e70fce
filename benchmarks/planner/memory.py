"""Published memory of ranks beside its prediction, and whether runs that ran are said to fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from llm_npu.core.cards import card
from llm_npu.plan.answer import usable
from llm_npu.plan.interval import may_fit

from .megatron import memory as megatron
from .published import FITTED, HELD_OUT, Point, with_memory
from .validation import Family, width


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
    layout = point.layout
    cards = layout.cards // layout.pipeline_parallel_degree
    replicas = [rank % cards // layout.tensor_parallel_degree for rank in point.ranks]
    run = point.shape, layout, point.software, point.release, point.switches
    stages = {replica: megatron.ranks(*run, replica) for replica in set(replicas)}
    return tuple(
        stages[replica][rank // cards].first_peak for rank, replica in zip(point.ranks, replicas, strict=True)
    )


@cache
def widths() -> Family:
    """What a predicted peak stands for, from the errors of all runs, as none was fitted."""
    errors = [run.error for half in (FITTED, HELD_OUT) for run in predicted_memory(half)]
    return Family(round(width(errors), 3), len(errors))


def fits(point: Point) -> bool:
    """Whether a published run is said to fit its card, if barely: the lower end of its range does."""
    memory = megatron.peak(point.shape, point.layout, point.software, point.release)
    return may_fit(memory, usable(card(point.card), point.layout), widths().width)
