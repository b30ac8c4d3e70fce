"""The report as plain text."""

from __future__ import annotations

import textwrap

from ..compare import Comparison
from ..summary import Report
from . import tables

VIRTUAL = "This profile was written by the virtual NPU on a host CPU: its times say nothing about a card."


def write(report: Report, comparison: Comparison | None = None, top: int = 15) -> str:
    """The complete report, at most ``top`` operators; ``comparison`` adds changes since another profile."""
    parts = [heading(report)]
    if report.virtual:
        parts.append(VIRTUAL)
    parts.append(_advice(report))
    changes = tables.of_comparison(comparison, top) if comparison else []
    if comparison:
        parts.append(f"before: {comparison.before.source}\nafter:  {comparison.after.source}")
    parts += [table.text() for table in (*changes, *tables.of(report, top))]
    if report.notes:
        parts.append("Notes\n" + "\n".join(_wrapped(note, "- ") for note in report.notes))
    return "\n\n".join(parts) + "\n"


def heading(report: Report) -> str:
    """One line with the folder and its contents."""
    count = sum(rank.tasks for rank in report.ranks)
    steps = f", {report.steps} steps" if report.steps else ", steps are not marked"
    return f"{report.source}: {len(report.ranks)} ranks, {count} tasks{steps}"


def _advice(report: Report) -> str:
    if not report.advice:
        return "Advice\nNothing stands out."
    lines = ["Advice, by the time at stake (sum over ranks)"]
    for number, advice in enumerate(report.advice, 1):
        lines.append(_wrapped(f"{advice.title}: {tables.text(advice.at_stake)}", f"{number}. "))
        lines.append(_wrapped(advice.evidence, "   evidence: "))
        lines.append(_wrapped(advice.fix, "   do: "))
    return "\n".join(lines)


def _wrapped(words: str, mark: str) -> str:
    return textwrap.fill(words, 110, initial_indent=mark, subsequent_indent="   ", break_long_words=False)
