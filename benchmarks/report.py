"""Results: records, the table, JSON lines, and the comparison with older ones.

A record is a flat dictionary. ``kind`` is "machine" (the facts and the limits), "time" (one contender on one
case: median and spread in seconds, share of the limit, or the reason why there is none) or "goal".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from paddle_fused import strict_json

from . import timing


class Goal(NamedTuple):
    """``value`` is met if it is at most ``at_most``."""

    text: str
    value: float
    at_most: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.at_most


class Timed(NamedTuple):
    """The subject of a time or goal record."""

    operator: str
    sizes: str
    dtype: str
    way: str
    malloc: str
    contender: str


KEY = Timed._fields
CASE = KEY[:-1]


def time_record(of: Timed, seconds: list[float] | None, reason: str | None = None, **more) -> dict:
    """A record of times, or of the ``reason`` why there are none. With ``limit``, in seconds, includes the
    share of the limit."""
    record = {"kind": "time", **of._asdict(), **more}
    if seconds is None:
        return {**record, "skipped": reason}
    median, spread = timing.summary(seconds)
    record |= {"median": median, "spread": spread, "rounds": len(seconds)}
    return {**record, "share": more["limit"] / median} if "limit" in more else record


def goal_record(of: Timed, goal: Goal) -> dict:
    return {
        "kind": "goal",
        **of._asdict(),
        "goal": goal.text,
        "value": goal.value,
        "at_most": goal.at_most,
        "met": goal.is_met,
    }


def goal(met: bool, what: str) -> str:
    """A line about a goal of a benchmark without records."""
    return f"goal {'met' if met else 'MISSED'}: {what}"


def write(records: list[dict], file: str) -> None:
    Path(file).write_text("".join(strict_json.dumps(record) + "\n" for record in records))


def read(file: str) -> list[dict]:
    """The records of a file that `write` wrote; ValueError if it is not one."""
    try:
        records = [json.loads(line) for line in Path(file).read_text().splitlines() if line]
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON lines: {error}.") from error
    if not any(isinstance(record, dict) and record.get("kind") == "time" for record in records):
        raise ValueError(f"{file} contains no times; accepted: a file that --json wrote.")
    return records


def heading(machine: dict) -> str:
    """The machine's record in one line."""
    count = f"{machine['cores']} cores, {machine['threads']} threads"
    return f"{machine['processor']}, {count}, commit {machine['commit']}"


def milliseconds(seconds: float) -> str:
    """Three digits."""
    value = seconds * 1e3
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def facts(machine: dict) -> str:
    """The machine's record in a few lines."""
    instructions = " ".join(machine["instructions"]) or "baseline"
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {instructions}, {machine['memory_gb']} GB; "
        f"{machine['threads']} threads, commit {machine['commit']}"
    ]
    if machine.get("versions"):
        lines.append(", ".join(f"{name}: {version}" for name, version in machine["versions"].items()))
    if "bandwidth" in machine:
        for way, rates in machine["bandwidth"].items():
            sets = ", ".join(f"{int(size) >> 20} MiB {rate / 1e9:.1f}" for size, rate in rates.items())
            lines.append(f"limit {way} (GB/s): {sets}")
    if "gemm" in machine:
        rates = ", ".join(f"{dtype} {rate / 1e9:.3g}" for dtype, rate in machine["gemm"].items())
        lines.append(f"limit matrix product (GF/s): {rates}")
    return "\n".join(lines)


def blank(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
    """A table without rows; ``left`` and ``right``: its column headings, by alignment."""
    rich_table = Table(title=title, title_justify="left")
    for justify, heads in (("left", left), ("right", right)):
        for head in heads:
            rich_table.add_column(head, justify=justify, overflow="fold")
    return rich_table


def table(records: list[dict], contenders: list[str], title: str) -> Table:
    """Milliseconds (spread) of every contender, and its share of the limit in percent."""
    columns = (f"{name}\nms ± spread, share" for name in contenders)
    rich_table = blank(title, ["work"], ["limit ms", *columns])
    for case, of in by_case(records).items():
        operator, sizes, dtype, way, _ = case
        cells = [_cell(of.get(name)) for name in contenders]
        limit = next(iter(of.values()))["limit"]
        rich_table.add_row(f"{operator} {sizes}\n{dtype} {way}", milliseconds(limit), *cells)
    return rich_table


def _cell(record: dict | None) -> str:
    if record is None:
        return ""
    if "skipped" in record:
        return record["skipped"]
    spread = milliseconds(record["spread"])
    return f"{milliseconds(record['median'])} ± {spread}\n{record['share']:.0%}"


def by_case(records: list[dict]) -> dict[tuple, dict[str, dict]]:
    """{case: {contender: its record}} of the times."""
    cases: dict[tuple, dict[str, dict]] = {}
    for record in records:
        if record["kind"] == "time":
            cases.setdefault(tuple(record[name] for name in CASE), {})[record["contender"]] = record
    return cases


def goals(records: list[dict]) -> list[str]:
    """One line per goal."""
    lines = []
    for record in records:
        if record["kind"] != "goal":
            continue
        work = " ".join(record[name] for name in ("operator", "sizes", "dtype", "way"))
        lines.append(
            f"goal {'met   ' if record['met'] else 'MISSED'} {record['goal']} {record['value']:.3f} "
            f"(at most {record['at_most']:.3f}): {work}, {record['contender']}, malloc {record['malloc']}"
        )
    return lines


def comparison(old: list[dict], new: list[dict]) -> Table:
    """The ratio new / old of all medians that both have; below 1 the new one is faster."""
    before = {tuple(record[name] for name in KEY): record for record in old if "median" in record}
    title = "compared with the older run: new / old time"
    rich_table = blank(title, ("work", "contender"), ("old ms", "new ms", "new / old"))
    for record in new:
        earlier = before.get(tuple(record.get(name) for name in KEY))
        if earlier is None or "median" not in record:
            continue
        medians = [milliseconds(record_of_case["median"]) for record_of_case in (earlier, record)]
        work = " ".join(record[name] for name in CASE[:4])
        ratio = f"{record['median'] / earlier['median']:.3f}"
        rich_table.add_row(f"{work}, malloc {record['malloc']}", record["contender"], *medians, ratio)
    return rich_table


def show(*parts) -> None:
    """Print tables and lines. Tables are not truncated to the terminal's width when printing to a file or a
    pipe."""
    plain = {"markup": False, "emoji": False, "highlight": False}
    console = Console(**plain)
    if not console.is_terminal:
        console = Console(width=200, **plain)
    for part in parts:
        print(part) if isinstance(part, str) else console.print(part)
