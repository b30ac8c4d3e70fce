"""The report's tables, for the plain text and for the page."""

from __future__ import annotations

from dataclasses import fields
from statistics import median

import numpy as np

from llm_npu.report.table import Table, share, shortened

from .. import classes
from ..compare import Change, Comparison
from ..measure import PRIORITY, Work
from ..summary import Report
from ..times import text

_SHAPES = 40  # characters shown of a cell with shapes
_STEPS = 40  # rows of a table


def of(report: Report, top: int) -> list[Table]:
    """All tables of a report; ``top`` is the number of operators shown."""
    tables = [_classes(report), _parts(report), _operators(report, top), _coverage(report), _steps(report)]
    return [table for table in (*tables, _ranks(report), _memory(report)) if table.rows]


def _classes(report: Report) -> Table:
    window = sum(rank.window for rank in report.ranks)
    rows = []
    for name in classes.CLASSES:
        works = [rank.works[name] for rank in report.ranks]
        calls, time, alone = (
            sum(getattr(work, field) for work in works) for field in ("calls", "time", "alone")
        )
        if calls:
            rows.append([name, str(calls), text(time), text(alone), share(alone, window)])
            if name == classes.COMMUNICATION:
                total, hidden = (
                    sum(getattr(rank, at) for rank in report.ranks) for at in ("communication", "hidden")
                )
                exposed = total - hidden
                rows.append(
                    ["  hidden behind computation", "", text(hidden), "", share(hidden, total) + " of it"]
                )
                rows.append(["  exposed", "", text(exposed), "", share(exposed, total) + " of it"])
                rows += _transfers(report, total)
    idle = sum(rank.idle for rank in report.ranks)
    rows.append(["idle", "", "", text(idle), share(idle, window)])
    known = [rank.launch_bound for rank in report.ranks if rank.launch_bound is not None]
    if known:
        rows.append(["  launch-bound", "", "", text(sum(known)), share(sum(known), idle) + " of it"])
    rows.append(["window", "", "", text(window), "100.0%" if window else ""])
    remark = "tasks: sum of the durations; time: exclusive share of the window."
    if not known:
        remark += " The profile has no launch times, so idle time is not split."
    return Table("Time by class", ["class", "calls", "tasks", "time", "share"], rows, remark=remark)


def _transfers(report: Report, total: int) -> list[list[str]]:
    """The exposed transfers of split sequences, of ``total`` communication."""
    return [
        [f"    {name}", str(work.calls), text(work.alone), "", share(work.alone, total) + " of it"]
        for name, work in _sums([rank.transfers for rank in report.ranks]).items()
    ]


def _sums(ranks: list[dict[str, Work]]) -> dict[str, Work]:
    """The sum of the works of each name over all ranks."""
    works = {name: [rank[name] for rank in ranks if name in rank] for rank in ranks for name in rank}
    return {
        name: Work(*(sum(getattr(work, field.name) for work in same) for field in fields(Work)))
        for name, same in works.items()
    }


def _parts(report: Report) -> Table:
    parts = _sums([rank.parts for rank in report.ranks])
    everything = [work for rank in report.ranks for work in rank.works.values()]
    calls, time = (sum(getattr(work, name) for work in everything) for name in ("calls", "time"))
    rows = [
        [shortened(name), str(work.calls), text(work.time), share(work.time, time)]
        for name, work in parts.items()
    ]
    if rows:
        calls -= sum(work.calls for work in parts.values())
        rest = time - sum(work.time for work in parts.values())
        rows.append(["rest of the step", str(calls), text(rest), share(rest, time)])
    columns = ["part", "calls", "tasks", "share"]
    remark = "forward and backward pass; the rest is the optimizer and what no part launched."
    return Table("Time by part of the model", columns, rows, remark=remark)


def _operators(report: Report, top: int) -> Table:
    total = sum(operator.time for operator in report.operators)
    rows = []
    for operator in report.operators[:top]:
        rows.append(
            [
                shortened(operator.name),
                operator.work,
                shortened(operator.dtypes) or "not recorded",
                shortened(operator.shapes, _SHAPES),
                str(operator.calls),
                text(operator.time),
                share(operator.time, total),
                text(operator.time / operator.calls),
                text(operator.longest),
            ]
        )
    columns = ["operator", "class", "dtypes", "input shapes", "calls", "time", "share", "mean", "longest"]
    rest = len(report.operators) - top
    remark = f"{rest} more operators; shapes: the most expensive." if rest > 0 else ""
    return Table("Top operators", columns, rows, words=4, remark=remark)


def _coverage(report: Report) -> Table:
    rows = []
    for kind in report.coverage:
        together = kind.fused_time + kind.unfused_time
        rows.append(
            [
                kind.name,
                kind.status,
                shortened(", ".join(kind.parts)) or "-",
                str(kind.fused_calls),
                text(kind.fused_time),
                text(kind.unfused_time),
                share(kind.fused_time, together),
            ]
        )
    if all(kind.status == "did not run" for kind in report.coverage):
        rows = []  # not a Llama
    columns = ["operator", "state", "runs as", "fused calls", "fused", "unfused", "fused share"]
    return Table("Fused operators", columns, rows, words=3)


def _steps(report: Report) -> Table:
    columns = ["step", "time", "computing", "communication, exposed", "copy", "idle", "data loading"]
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    remark = ""
    if len(steps) > _STEPS:
        remark = f"The longest {_STEPS} of {len(steps)} steps."
        steps = sorted(steps, key=lambda pair: -pair[1].time)[:_STEPS]
    rows = []
    for rank, step in steps:
        computing = sum(step.spent[name] for name in classes.COMPUTE)
        others = [step.spent[name] for name in PRIORITY if name not in classes.COMPUTE]
        name = shortened(step.name)
        name = f"rank {rank.rank} {name}" if len(report.ranks) > 1 else name
        rows.append([name, *map(text, (step.time, computing, *others, step.data_loading))])
    return Table("Steps", columns, rows, remark=remark)


def _ranks(report: Report) -> Table:
    rows = []
    if len(report.ranks) > 1:
        waiting = report.stragglers.waiting if report.stragglers else {}
        for rank in report.ranks:
            times = [step.time for step in rank.steps]
            rows.append(
                [
                    str(rank.rank),
                    text(rank.window),
                    text(median(times)) if times else "-",
                    text(rank.computing),
                    text(rank.hidden),
                    text(rank.exposed),
                    text(rank.idle),
                    text(waiting[rank.rank]) if waiting else "-",
                ]
            )
    columns = ["rank", "window", "median step", "computing", "hidden", "exposed", "idle", "waits for others"]
    if rows and any(rank.machine for rank in report.ranks):
        columns.append("machine")
        rows = [[*row, rank.machine or "-"] for row, rank in zip(rows, report.ranks, strict=True)]
    remark = "waits for others: extra duration of its collectives over the rank with the shortest duration."
    return Table("Ranks", columns, rows, remark=remark)


def _memory(report: Report) -> Table:
    rows = []
    for rank in report.ranks:
        when, allocated, reserved = rank.memory
        if len(when):
            peak = int(np.argmax(allocated))
            sizes = (allocated[0], allocated.max(), reserved.max(), allocated[-1])
            mebibytes = [f"{size / 2**20:.1f} MiB" for size in sizes]
            if not allocated.any():
                mebibytes = ["not recorded", "not recorded", mebibytes[2], "not recorded"]
                peak = int(np.argmax(reserved))
            rows.append([f"rank {rank.rank}", *mebibytes, f"after {text(when[peak])}"])
    columns = ["memory", "in use at first", "peak in use", "peak reserved", "in use at last", "peak"]
    return Table("Memory", columns, rows)


def of_comparison(comparison: Comparison, top: int) -> list[Table]:
    """The tables of changes between two profiles."""
    unit = f"per {comparison.unit} and rank" if comparison.unit == "step" else "per rank, whole profile"
    spent = [
        _change(change) for change in (*comparison.spent, comparison.total) if change.before or change.after
    ]
    operators = [
        [*_change(change), f"{change.calls_before:g}", f"{change.calls_after:g}"]
        for change in comparison.operators[:top]
        if change.difference
    ]
    columns = ["before", "after", "difference", "change"]
    tables = [
        Table(f"What changed, {unit}", ["class", *columns], spent),
        Table(f"Operators that changed, {unit}", ["operator", *columns, "calls before", "after"], operators),
        Table(
            "Fused operators that changed",
            ["operator", "before", "after"],
            [*map(list, comparison.coverage)],
            words=3,
        ),
    ]
    return [table for table in tables if table.rows]


def _change(change: Change) -> list[str]:
    if not change.before:
        relative = "new"
    elif not change.after:
        relative = "gone"
    elif change.after > 10 * change.before:
        relative = f"x{change.after / change.before:.0f}"
    else:
        relative = f"{100 * change.difference / change.before:+.1f}%"
    difference = ("+" if change.difference > 0 else "") + text(change.difference)
    return [shortened(change.name), text(change.before), text(change.after), difference, relative]
