"""Predictions of published runs from other runs, and the efficiencies and families that plans use."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from llm_npu.plan.cost import StepTime
from llm_npu.plan.interval import FAMILIES, OTHER, families

from .fitting import fit
from .programs.program import ProgramEfficiencies
from .published import FITTED, HELD_OUT, UNNAMED, Point, timed

SHARE = 0.9  # share of a family's runs within its width
PROGRAMS = ("mindspeed", "modellink", "mindformers")
CONTEXT = "context parallel"  # a separate family, because this trainer has no context parallelism


@dataclass(frozen=True)
class PredictedRun:
    """A published run and its prediction with efficiencies fitted on other runs."""

    point: Point
    predicted: StepTime

    @property
    def error(self) -> float:
        """Relative error of the step time."""
        return self.point.measured / self.predicted.tokens_per_second_per_card - 1


@dataclass(frozen=True)
class Family:
    """90 % of ``runs`` published runs were predicted within ``width``."""

    width: float
    runs: int


def fitted_on(pool: Sequence[Point], start: ProgramEfficiencies | None = None) -> ProgramEfficiencies:
    """The efficiencies that fit the runs of ``pool`` best."""

    def predict(efficiencies: ProgramEfficiencies) -> list[float]:
        return [point.predict(efficiencies).tokens_per_second_per_card for point in pool]

    return fit(predict, [point.measured for point in pool], start)


def program(point: Point) -> str:
    """The program of a run."""
    return point.stack


def cross_validated(
    pool: Sequence[Point], start: ProgramEfficiencies, group: Callable[[Point], Hashable] = Point.model
) -> tuple[PredictedRun, ...]:
    """Every run of ``pool``, predicted from the runs of other groups (by default, of other models)."""
    fits = {
        name: fitted_on([point for point in pool if group(point) != name], start)
        for name in dict.fromkeys(map(group, pool))
    }
    return tuple(PredictedRun(point, point.predict(fits[group(point)])) for point in pool)


def width(errors: Sequence[float]) -> float:
    """The error that a share ``SHARE`` of future runs stays within, if they are like ``errors``.

    Of n errors in ascending order, number ceil(0.9 (n + 1)), or the largest if there are fewer than nine.
    """
    sizes = sorted(map(abs, errors))
    return sizes[min(math.ceil(SHARE * (len(sizes) + 1)), len(sizes)) - 1]


@dataclass(frozen=True)
class Validation:
    """The validation results.

    Attributes:
        cross_validated: the fitted half, each run predicted from runs of other models.
        held_out: the other half, predicted from the whole fitted half.
        unseen: the fitted half, each run predicted from runs of other programs.
        unnamed: runs without a published card type, predicted like ``held_out``; not counted.
        efficiencies: the parameters that plans use.
    """

    cross_validated: tuple[PredictedRun, ...]
    held_out: tuple[PredictedRun, ...]
    unseen: tuple[PredictedRun, ...]
    unnamed: tuple[PredictedRun, ...]
    efficiencies: ProgramEfficiencies

    @cached_property
    def errors(self) -> dict[str, list[PredictedRun]]:
        """The runs of every family; no run is part of its own prediction."""
        runs_of: dict[str, list[PredictedRun]] = {name: [] for name in (*FAMILIES, CONTEXT, *PROGRAMS)}
        for run in (*self.cross_validated, *self.held_out):
            for name in _families(run.point):
                runs_of[name].append(run)
        return runs_of | {OTHER: list(self.unseen)}

    @cached_property
    def families(self) -> dict[str, Family]:
        """The widths from the errors of all runs; plans use the families that this trainer runs."""
        return {
            name: Family(round(width([run.error for run in runs]), 3), len(runs))
            for name, runs in self.errors.items()
        }

    def width(self, point: Point) -> float:
        """The width that an answer for ``point`` would state if no run of its model were published."""
        return max(
            width([run.error for run in self.errors[name] if run.point.model() != point.model()])
            for name in _families(point)
        )

    def within(self, run: PredictedRun) -> bool:
        return abs(run.error) <= self.width(run.point)


def _families(point: Point) -> list[str]:
    cut = [CONTEXT] if point.layout.context_parallel_degree > 1 else []
    return [*families(point.shape, point.layout), *cut, point.stack]


@cache
def validation() -> Validation:
    """Fits and predictions of all published runs that the model can describe."""
    pool = timed(FITTED)
    best = fitted_on(pool)
    judged, unnamed = (
        tuple(PredictedRun(point, point.predict(best)) for point in timed(half))
        for half in (HELD_OUT, UNNAMED)
    )
    others = cross_validated(pool, best, program)
    return Validation(cross_validated(pool, best), judged, others, unnamed, best)
