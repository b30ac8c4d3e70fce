"""What a rank's folder holds, read without the code under test."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path


def output(folder: Path) -> Path:
    """The only msprof tree of a rank's folder."""
    (profile,) = folder.glob("PROF_*")
    return profile / "mindstudio_profiler_output"


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of one of msprof's tables."""
    (file,) = output(folder).glob(f"{name}_*.csv")
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def timeline(folder: Path) -> list[dict]:
    """The events of msprof's timeline."""
    (file,) = output(folder).glob("msprof_*.json")
    return json.loads(file.read_text())


def processes(events: list[dict]) -> dict[int, str]:
    """pid -> its name."""
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def nanoseconds(microseconds: object) -> int:
    """Of a time in microseconds, as a string or a number."""
    return int(Decimal(str(microseconds).strip()) * 1000)


def span(event: dict) -> tuple[int, int]:
    """Start and end of an event, in nanoseconds."""
    start = nanoseconds(event["ts"])
    return start, start + nanoseconds(event["dur"])


def arrows(events: list[dict], category: str) -> dict[str, tuple[dict, dict]]:
    """id -> the two ends of each flow arrow of the category."""
    ends: dict[str, dict[str, dict]] = defaultdict(dict)
    for event in events:
        if event.get("ph") in ("s", "f") and event.get("cat") == category:
            ends[str(event["id"])][event["ph"]] = event
    return {name: (both["s"], both["f"]) for name, both in ends.items()}
