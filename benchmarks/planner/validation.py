"""Every published run predicted from unrelated runs, and the efficiencies that plans use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from llm_npu.core.cards import Card, card
from llm_npu.plan.cost import StepTime
from llm_npu.plan.step_model.roofline import Efficiencies

from .fitting import fit
from .published import Point, points

SERVER = "910b"  # Atlas 900 A2 PODc; data/cards.json says why this card
SHARE = 0.9  # share of the published runs predicted within the error that answers state


@dataclass(frozen=True)
class PredictedRun:
    """A published run and its prediction by efficiencies fitted on ``fitted_on`` other runs."""

    point: Point
    predicted: StepTime
    fitted_on: int

    @property
    def error(self) -> float:
        """Relative error of tokens/s."""
        return self.predicted.tokens_per_second_per_card / self.point.measured - 1

    @property
    def time_error(self) -> float:
        """Relative error of the seconds of a step."""
        return 1 / (1 + self.error) - 1


def fitted_on(pool: Sequence[Point], on: Card) -> Efficiencies:
    """The efficiencies that explain the runs of ``pool`` best."""

    def predict(efficiencies: Efficiencies) -> list[float]:
        return [point.predict(efficiencies, on).tokens_per_second_per_card for point in pool]

    return fit(predict, [point.measured for point in pool])


def left_out(judged: Sequence[Point], pool: Sequence[Point], on: Card) -> tuple[PredictedRun, ...]:
    """Every run of ``judged`` predicted from those of ``pool`` that are neither it nor its twins."""
    found = []
    for point in judged:
        others = [other for other in pool if not point.twin(other)]
        predicted = point.predict(fitted_on(others, on), on)
        found.append(PredictedRun(point, predicted, len(others)))
    return tuple(found)


@dataclass(frozen=True)
class Validation:
    """``everywhere``: every run, from all others. ``goal``: the eight among them. ``alone``: the eight, from
    the other seven only. ``scripted``: as ``everywhere``, with MC2 wherever a script names it;
    ``scripted_goal``: the eight among them.
    ``efficiencies``: fitted on all runs; their ``error`` is what answers state."""

    everywhere: tuple[PredictedRun, ...]
    alone: tuple[PredictedRun, ...]
    scripted: tuple[PredictedRun, ...]
    efficiencies: Efficiencies

    @property
    def goal(self) -> tuple[PredictedRun, ...]:
        return tuple(one for one in self.everywhere if one.point.goal)

    @property
    def scripted_goal(self) -> tuple[PredictedRun, ...]:
        return tuple(one for one in self.scripted if one.point.goal)


@cache
def validation() -> Validation:
    """Fits and predictions of all published runs that the model can describe."""
    on, every = card(SERVER), points()
    named = points(as_scripted=True)
    judged = tuple(point for point in every if point.goal)
    scripted = left_out(named, named, on)
    everywhere = left_out(every, every, on)
    error = float(np.quantile([abs(one.time_error) for one in everywhere], SHARE, method="higher"))
    best = fitted_on(every, on)
    stated = Efficiencies(best.cube, best.attention, best.hidden, error=round(error, 3))
    return Validation(everywhere, left_out(judged, judged, on), scripted, stated)
