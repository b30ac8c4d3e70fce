"""Reads ``metrics.jsonl``, also after a kill, a full disk or an editor. Importing it imports no framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from llm_npu.core.untrusted import plain_json

LONGEST = 1 << 20  # characters of a line
LARGEST = 1 << 53  # integers that float64 has
# Fields that the program computes with; a record may have more.
NUMBERS = ("loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_s", "step_s", "data_s")
NUMBERS += ("communication_s", "exposed_s", "mfu", "peak_memory", "checkpoint_s", "stall_s")


def read(file: str | Path, notes: list[str] | None = None) -> list[dict]:
    """The records of a ``metrics.jsonl``, without a last line that a killed process has cut off.

    Other lines that are not records are counted in ``notes``.
    """
    records, others = [], 0
    for line in _lines(Path(file)):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line[-1] == "\n" and not line.isspace():
            others += 1
    if others and notes is not None:
        notes.append(f"{file}: {others} lines are not records of a run and are left out")
    return records


def _lines(file: Path) -> Iterator[str]:
    if not file.is_file():
        return
    with file.open(encoding="utf-8-sig", errors="replace", newline="\n") as lines:
        while line := lines.readline(LONGEST):
            is_whole = len(line) < LONGEST or line[-1] == "\n"
            while len(line) == LONGEST and line[-1] != "\n":
                line = lines.readline(LONGEST)
            yield line if is_whole else "\0\n"


def _record(line: str) -> dict | None:
    try:
        record = plain_json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int or record["step"] < 0:
        return None
    return record if all(_is_number(record.get(name)) for name in ("step", *NUMBERS)) else None


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number; null is one that is not finite."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < LARGEST)
