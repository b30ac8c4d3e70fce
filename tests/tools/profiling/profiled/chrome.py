"""A strict judge of Chrome traces: what a viewer would draw wrong, in words.

Slices of one row that overlap without one holding the other are dropped or drawn inside one another, and an
arrow that ends outside of a slice is not drawn.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

SAFE_INTEGER = 2**53  # JavaScript counts no further

Clock = Callable[[object], int]


def read(file: Path) -> list[dict]:
    """The events of a file, whose numbers with a fraction are exact (Decimal)."""
    trace = json.loads(file.read_text(), parse_float=Decimal)
    return trace if isinstance(trace, list) else trace["traceEvents"]


def written(time: object) -> int:
    """Nanoseconds of a time in microseconds, as it is written."""
    return int(1000 * Decimal(str(time)))


def viewed(time: object) -> int:
    """The same as Perfetto reads it: text exactly, a number as a double, times 1000, without the rest."""
    return written(time) if isinstance(time, (str, int)) else int(float(time) * 1000.0)


def faults(events: list[dict], clock: Clock = viewed) -> list[str]:
    """Everything that is wrong with the events; empty for a trace that is drawn as it is meant.

    ``clock`` is how times are read.
    """
    slices = _slices(events, clock)
    return [*_times(events, clock), *_rows(slices), *_arrows(events, slices, clock), *_names(events)]


def _times(events: list[dict], clock: Clock) -> list[str]:
    problems = []
    for event in events:
        for name in ("ts", "dur") if event["ph"] == "X" else ("ts",) if event["ph"] != "M" else ():
            if written(event[name]) < 0:
                problems.append(f"{name} of {event['name']} is {event[name]}")
            elif clock(event[name]) != written(event[name]):
                problems.append(f"{name} of {event['name']}, {event[name]} us, is {clock(event[name])} ns")
    return problems


def _slices(events: list[dict], clock: Clock) -> dict[tuple, list[tuple[int, int, int, str]]]:
    """Row: (start, minus the end, place in the file, name) of its slices, each before those inside it."""
    rows = defaultdict(list)
    for place, event in enumerate(events):
        if event["ph"] == "X":
            start, length = clock(event["ts"]), clock(event["dur"])
            rows[event["pid"], event["tid"]].append((start, -start - length, place, event["name"]))
    return {row: sorted(slices) for row, slices in rows.items()}


def _rows(rows: dict[tuple, list[tuple[int, int, int, str]]]) -> list[str]:
    problems = []
    for row, slices in rows.items():
        around: list[tuple[int, str]] = []  # the slices that are open, with their ends
        for start, minus_end, _, name in slices:
            while around and around[-1][0] <= start:
                around.pop()
            if around and -minus_end > around[-1][0]:
                problems.append(f"{name} begins inside {around[-1][1]} and ends behind it, in row {row}")
            around.append((-minus_end, name))
    return problems


def _arrows(events: list[dict], slices: dict[tuple, list], clock: Clock) -> list[str]:
    problems = []
    ends: dict[tuple, dict[str, int]] = defaultdict(dict)
    for place, event in enumerate(events):
        kind = event["ph"]
        if kind not in ("s", "f"):
            continue
        name, when = f"the arrow {event['cat']} {event['id']}", clock(event["ts"])
        if isinstance(event["id"], int) and event["id"] >= SAFE_INTEGER:
            problems.append(f"{name} has a number that a viewer rounds")
        if kind == "f" and event.get("bp") != "e":
            problems.append(f"{name} ends at the slice that follows, not at the one around it")
        arrow = ends[event["cat"], event["id"]]
        if kind in arrow:
            problems.append(f"{name} has two ends {kind}")
        arrow[kind] = when
        # A slice that begins at that moment must have been read before.
        if not any(
            start < when < -minus_end or (start == when and at < place)
            for start, minus_end, at, _ in slices.get((event["pid"], event["tid"]), ())
        ):
            problems.append(f"{name} has its end {kind} in no slice")
    for (category, number), arrow in ends.items():
        if len(arrow) < 2:
            problems.append(f"the arrow {category} {number} has one end only")
        elif arrow["s"] > arrow["f"]:
            problems.append(f"the arrow {category} {number} goes back in time")
    return problems


def _names(events: list[dict]) -> list[str]:
    names = defaultdict(set)
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]].add(event["args"]["name"])
    problems = [
        f"process {pid} has the names {sorted(called)}" for pid, called in names.items() if len(called) > 1
    ]
    nameless = {event["pid"] for event in events if event["ph"] == "X"} - names.keys()
    return problems + [f"process {pid} has no name" for pid in sorted(nameless)]
