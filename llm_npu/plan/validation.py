"""The cost model against published runs, each predicted from others: ``python -m llm_npu.plan.validation``.

``--write`` writes the fitted efficiencies into the data file efficiencies.json, and
docs/planning_validation.md with its chart, in a source tree.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from . import validation_page
from .cards import DATA, Card, card
from .cost import StepTime
from .fitting import PRIORS, fit
from .published import Point, points
from .roofline import Efficiencies

SERVER = "910b"  # Atlas 900 A2 PODc; data/cards.json says why this card
SHARE = 0.9  # of the published runs are predicted within the error that answers state


@dataclass(frozen=True)
class Judged:
    """A published run and its prediction by efficiencies fitted on ``fitted_on`` other runs."""

    point: Point
    predicted: StepTime
    fitted_on: int

    @property
    def error(self) -> float:
        """Relative, of tokens/s."""
        return self.predicted.tokens_per_second_per_card / self.point.measured - 1

    @property
    def time_error(self) -> float:
        """Relative, of the seconds of a step."""
        return 1 / (1 + self.error) - 1


def fitted_on(pool: Sequence[Point], on: Card) -> Efficiencies:
    """The efficiencies that explain the runs of ``pool`` best."""

    def predict(efficiencies: Efficiencies) -> list[float]:
        return [point.predict(efficiencies, on).tokens_per_second_per_card for point in pool]

    return fit(predict, [point.measured for point in pool])


def left_out(judged: Sequence[Point], pool: Sequence[Point], on: Card) -> tuple[Judged, ...]:
    """Every run of ``judged`` predicted from those of ``pool`` that are neither it nor its twins."""
    found = []
    for point in judged:
        others = [other for other in pool if not point.twin(other)]
        predicted = point.predict(fitted_on(others, on), on)
        found.append(Judged(point, predicted, len(others)))
    return tuple(found)


@dataclass(frozen=True)
class Validation:
    """``everywhere``: every run, from all others. ``goal``: the eight among them. ``alone``: the eight, from
    the other seven only. ``scripted``: as ``everywhere``, with MC2 wherever a script names it;
    ``scripted_goal``: the eight among them.
    ``efficiencies``: fitted on all runs; their ``error`` is what answers state."""

    everywhere: tuple[Judged, ...]
    alone: tuple[Judged, ...]
    scripted: tuple[Judged, ...]
    efficiencies: Efficiencies

    @property
    def goal(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.everywhere if one.point.goal)

    @property
    def scripted_goal(self) -> tuple[Judged, ...]:
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


def write(found: Validation, root: Path) -> None:
    """The data file, the page and its chart, below the source tree ``root``."""
    docs = root / "docs"
    if not docs.is_dir():
        raise ValueError(f"--write needs a source tree, but {root} has no folder docs; run it in one")
    values = {name: getattr(found.efficiencies, name) for name in PRIORS}
    data = {"efficiencies": values, "error": found.efficiencies.error}
    (DATA / "efficiencies.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    (docs / "planning_validation.md").write_text(validation_page.page(found), encoding="utf-8")
    validation_page.chart(found, docs / "images" / "planning_validation.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m llm_npu.plan.validation", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the data file, the page and its chart")
    asked = parser.parse_args(arguments)
    found = validation()
    print(validation_page.table(found))
    print(validation_page.summary(found))
    if asked.write:
        write(found, Path(__file__).resolve().parents[2])


if __name__ == "__main__":
    main()
