"""The changes between two profiles."""

from __future__ import annotations

from dataclasses import dataclass

from .measure import PRIORITY
from .summary import Report


@dataclass(frozen=True)
class Change:
    """Times before and after, in ns per step (or per rank, see Comparison.unit), and numbers of calls."""

    name: str
    before: float
    after: float
    calls_before: float = 0
    calls_after: float = 0

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """Two profiles side by side, largest changes first.

    Times are per step and rank (``unit`` "step") if both profiles mark the steps of every rank. Otherwise
    they are per rank for the whole profile ("profile"), which is only comparable if both contain the same
    work.
    """

    before: Report
    after: Report
    unit: str
    total: Change
    spent: list[Change]
    operators: list[Change]
    coverage: list[tuple[str, str, str]]  # operator, status before, status after; only differences


def compare(before: Report, after: Report) -> Comparison:
    """Compare two profiles."""
    marked = all(rank.steps for report in (before, after) for rank in report.ranks)
    unit = "step" if marked else "profile"
    counts = [report.steps if unit == "step" else len(report.ranks) for report in (before, after)]
    spent = [_per(report.spent(), count) for report, count in zip((before, after), counts, strict=True)]
    operators = [
        {(operator.name, operator.work): operator for operator in report.operators}
        for report in (before, after)
    ]
    changes = []
    for name, work in operators[0] | operators[1]:
        times, calls = [], []
        for by_name, count in zip(operators, counts, strict=True):
            operator = by_name.get((name, work))
            times.append(operator.time / count if operator else 0)
            calls.append(operator.calls / count if operator else 0)
        changes.append(Change(f"{name} ({work})", *times, *calls))
    states = [{kind.name: kind.status for kind in report.coverage} for report in (before, after)]
    return Comparison(
        before,
        after,
        unit,
        Change("all", sum(spent[0].values()), sum(spent[1].values())),
        [Change(name, spent[0][name], spent[1][name]) for name in PRIORITY],
        sorted(changes, key=lambda change: -abs(change.difference)),
        [
            (name, states[0][name], states[1][name])
            for name in states[0]
            if states[0][name] != states[1][name]
        ],
    )


def _per(times: dict[str, int], count: int) -> dict[str, float]:
    return {name: time / count for name, time in times.items()}
