"""One Chrome trace per rank: Paddle's host events above msprof's device events, on one clock.

Paddle counts nanoseconds since 1970, msprof microseconds since 1970 in strings. Both use the host's clock,
but a viewer that reads such numbers as float64 rounds them to a quarter of a microsecond, and short
consecutive events overlap. Here all times count from the first event, in microseconds that a viewer converts
to the exact nanosecond. Arrows get small numbers: msprof may derive theirs from times since 1970.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from paddle_fused import strict_json

ARROW = ("s", "t", "f")  # categories of arrows between slices
COLUMNS = ("Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")


def write(
    file: Path, trees: Mapping[int, Any], msprof: list[Path], summaries: list[Path], rank: int, device: str
) -> None:
    """Write the trace. ``trees``: thread -> root of Paddle's events (``_ProfilerResult.get_data()``).

    ``msprof``: timelines of the device; their tasks get the shapes and dtypes in the tables ``summaries``
    (op_summary). ``device`` is a label in the file.
    """
    events = [*host_events(trees), *memory_events(trees)]
    pids = sorted({event["pid"] for event in events})
    for timeline in msprof:
        events += device_events(json.loads(timeline.read_text(), parse_float=Decimal))
    add_shapes(events, summaries)
    origin = min((event["ts"] for event in events if "ts" in event), default=0)
    for event in events:
        if "ts" in event:
            event["ts"] = microseconds(event["ts"] - origin)
        if "dur" in event:
            event["dur"] = microseconds(event["dur"])
    arrows: dict[tuple, int] = {}
    for event in events:
        if event.get("ph") in ARROW:
            event["id"] = arrows.setdefault((event.get("cat"), str(event["id"])), len(arrows) + 1)
    # An arrow must end at a slice that the viewer has already read.
    events.sort(key=lambda event: event.get("ph") in ARROW)
    named = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"Paddle, rank {rank}"}}
        for pid in pids
    ]
    about = {"device": device, "rank": rank, "origin_us": f"{origin // 1000}.{origin % 1000:03d}"}
    trace = {"traceEvents": named + events, "displayTimeUnit": "ms", "otherData": about}
    file.write_text(strict_json.dumps(trace, default=float))


def nodes(trees: Mapping[int, Any]) -> Iterator[Any]:
    """Paddle's host events, without the roots, which only contain the others."""
    waiting = [child for root in trees.values() for child in root.children_node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children_node


def host_events(trees: Mapping[int, Any]) -> list[dict]:
    """Paddle's events; ``ts`` in nanoseconds since 1970, ``dur`` in nanoseconds."""
    return [
        {
            "name": node.name,
            "cat": str(node.type).rpartition(".")[2],
            "ph": "X",
            "pid": node.process_id,
            "tid": node.thread_id,
            "ts": node.start_ns,
            "dur": node.end_ns - node.start_ns,
            "args": {},
        }
        for node in nodes(trees)
    ]


def memory_events(trees: Mapping[int, Any]) -> list[dict]:
    """The memory of Paddle's allocators, if recorded; ``ts`` in nanoseconds since 1970."""
    return [
        {
            "name": f"memory {change.place}",
            "ph": "C",
            "pid": node.process_id,
            "tid": 0,
            "ts": change.timestamp_ns,
            "args": {"allocated": change.current_allocated, "reserved": change.current_reserved},
        }
        for node in nodes(trees)
        for change in node.mem_node
    ]


def device_events(events: list[dict]) -> list[dict]:
    """The events of an msprof timeline; ``ts`` and ``dur`` in nanoseconds, strings or not."""
    return [
        {**event, **{name: nanoseconds(event[name]) for name in ("ts", "dur") if name in event}}
        for event in events
    ]


def add_shapes(events: list[dict], summaries: list[Path]) -> None:
    """Add op_summary's columns to the tasks among ``events``, matched by name and start."""
    known = {}
    for file in summaries:
        with file.open(newline="") as stream:
            for row in csv.DictReader(stream):
                key = row["Op Name"], nanoseconds(row["Task Start Time(us)"])
                known[key] = {name: row[name].strip('"') for name in COLUMNS if row[name] != "N/A"}
    for event in events:
        if found := known.get((event["name"], event.get("ts"))):
            event["args"] = {**event["args"], **found}


def nanoseconds(microseconds: str | float) -> int:
    """Exact conversion of msprof's times: strings (followed by a tab in its tables), or numbers."""
    return int(Decimal(str(microseconds).strip()) * 1000)


def microseconds(nanoseconds: int) -> float:
    """Viewers that multiply by 1000 and truncate, as Perfetto does, get exactly ``nanoseconds``.

    >>> int(1.005 * 1000), int(microseconds(1005) * 1000)
    (1004, 1005)
    """
    time = nanoseconds / 1000
    return time if int(time * 1000) == nanoseconds else math.nextafter(time, math.inf)
