"""A Chrome trace per rank, with Paddle's host events and msprof's device events on one clock.

Paddle writes nanoseconds since 1970; msprof writes microseconds since 1970 as strings. Both use the host's
clock. A viewer that reads these numbers as float64 rounds them to a quarter of a microsecond, so that short
consecutive events overlap. Here all times count from the first event, in microseconds that a viewer converts
to the exact nanosecond. Flow events get small ids, because msprof may derive its ids from absolute times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from paddle_fused import strict_json

from .report.reading.chrome_trace import TraceFile
from .report.times import nanoseconds

ARROW = ("s", "t", "f")  # categories of arrows between slices


def write(
    file: Path, trees: Mapping[int, Any], msprof: list[Path], summaries: list[Path], rank: int, device: str
) -> list[str]:
    """Write the trace and return notes about unreadable parts.

    Args:
        trees: thread -> root of Paddle's events (``_ProfilerResult.get_data()``).
        msprof: timelines of the device.
        summaries: op_summary tables with the shapes and dtypes of the device's tasks.
        device: a label in the file.
    """
    notes: list[str] = []
    events = [*host_events(trees), *memory_events(trees)]
    pids = sorted({event["pid"] for event in events})
    for timeline in msprof:
        events += device_events(timeline, notes)
    add_shapes(events, summaries, notes)
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
    # A viewer must read the slice at the end of an arrow before the arrow.
    events.sort(key=lambda event: event.get("ph") in ARROW)
    named = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"Paddle, rank {rank}"}}
        for pid in pids
    ]
    about = {"device": device, "rank": rank, "origin_us": f"{origin // 1000}.{origin % 1000:03d}"}
    trace = {"traceEvents": named + events, "displayTimeUnit": "ms", "otherData": about}
    file.write_text(strict_json.dumps(trace, default=float))
    return notes


def nodes(trees: Mapping[int, Any]) -> Iterator[Any]:
    """Paddle's host events, without the roots."""
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
    """The memory events of Paddle's allocators, if recorded; ``ts`` in nanoseconds since 1970."""
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


def device_events(file: Path, notes: list[str]) -> list[dict]:
    """The events of an msprof timeline; ``ts`` and ``dur`` in nanoseconds. Adds damage to ``notes``."""
    trace, events, damaged = TraceFile(file, Decimal), [], 0
    try:
        for event in trace:
            try:
                events.append(_device_event(event))
            except (ValueError, KeyError, TypeError):
                damaged += 1
    except (ValueError, OSError) as problem:
        notes.append(f"{problem} It is missing from the merged timeline.")
    if damaged or trace.broken_at is not None:
        notes.append(f"{file.name} is damaged: the merged timeline has only {len(events)} of its events.")
    return events


def _device_event(event: dict) -> dict:
    """The event with times in nanoseconds. Raises KeyError, TypeError or ValueError if it is invalid."""
    times = {
        name: nanoseconds(time if isinstance(time := event[name], int) else str(time).strip())
        for name in ("ts", "dur")
        if name in event
    }
    arrow = {"id": str(event["id"])} if event["ph"] in ARROW else {}
    return {**event, **times, **arrow, "args": {**event.get("args", {})}}


def add_shapes(events: list[dict], summaries: list[Path], notes: list[str]) -> None:
    """Add the shapes and dtypes from op_summary tables to the tasks among ``events``."""
    from .report.reading import op_summary  # imported late: it needs pandas

    known = {key: row for file in summaries for key, row in op_summary.shapes(file, notes)}
    for event in events:
        if cells := known.get((event["name"], event.get("ts"))):
            event["args"] = {**event["args"], **cells}


def microseconds(nanoseconds: int) -> float:
    """Microseconds that are exactly ``nanoseconds`` in viewers that multiply by 1000 and truncate.

    >>> int(1.005 * 1000), int(microseconds(1005) * 1000)
    (1004, 1005)
    """
    time = nanoseconds / 1000
    return time if int(time * 1000) == nanoseconds else math.nextafter(time, math.inf)
