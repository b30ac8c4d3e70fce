"""The report on a profile: each rank, totals, and advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from llm_npu.core.untrusted.plain_text import printable

from . import advice, fusion, stragglers
from .measure import PRIORITY, Measured, Operator, measure
from .reading import load


@dataclass(frozen=True)
class Report:
    """The report.

    Attributes:
        operators, coverage: totals over all ranks.
        notes: skipped files and rows, with reasons.
    """

    source: str  # the folders
    virtual: bool
    ranks: list[Measured]
    operators: list[Operator]
    coverage: list[fusion.Coverage]
    stragglers: stragglers.Stragglers | None
    advice: list[advice.Advice]
    notes: list[str]

    @property
    def steps(self) -> int:
        """The number of training steps over all ranks; 0 if the profile does not mark them."""
        return sum(len(rank.steps) for rank in self.ranks)

    def spent(self) -> dict[str, int]:
        """The windows of all ranks, divided among PRIORITY, in ns."""
        return {name: sum(rank.spent()[name] for rank in self.ranks) for name in PRIORITY}


def build(*directories: str | Path) -> Report:
    """Read the profiles below ``directories``; each must contain different ranks.

    Raises ValueError if a directory has no readable profile.
    """
    profile = load.load(*map(Path, directories))
    ranks = [measure(trace) for trace in profile.ranks]
    operators = _together(operator for rank in ranks for operator in rank.operators)
    covered = fusion.coverage(operators)
    compared = stragglers.find(ranks)
    recommendations = advice.advise(ranks, operators, covered, compared)
    return Report(
        printable(", ".join(map(str, profile.directories))),
        profile.virtual,
        ranks,
        operators,
        covered,
        compared,
        recommendations,
        [printable(note, longest=load.tasks.LONGEST) for note in profile.notes],
    )


def _together(operators: Iterable[Operator]) -> list[Operator]:
    """The operators of all ranks, merged by type and class."""
    same = defaultdict(list)
    for operator in operators:
        same[operator.name, operator.work].append(operator)
    merged = []
    for parts in same.values():
        most = max(parts, key=lambda operator: operator.time)
        calls, time = sum(part.calls for part in parts), sum(part.time for part in parts)
        merged.append(replace(most, calls=calls, time=time, longest=max(part.longest for part in parts)))
    return sorted(merged, key=lambda operator: (-operator.time, operator.name))
