"""The outcomes of a check, written case by case so that they survive a crash of the process.

The verdict of a case is ``same`` (as on the virtual NPU), ``differs``, ``lost`` (its process died) or
``note`` (not compared). A case that began but did not end shows where the process crashed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

SAME, DIFFERS, LOST, NOTE = VERDICTS = ("same", "differs", "lost", "note")
ERROR_CHARACTERS = 600
_FIELDS = {"case", "verdict", "message", "expected", "actual"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case; ``expected`` and ``actual`` are set if they can be shown side by side."""

    case: str
    verdict: str
    message: str
    expected: str = ""
    actual: str = ""


class Journal:
    """Writes outcomes to ``folder``; each rank has its own file."""

    def __init__(self, folder: Path, rank: int = 0):
        self._file = folder / f"journal.{rank}.jsonl"

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run the block as the case ``name``. An exception ends only this case, which then differs."""
        self.begin(name)
        try:
            yield
        except Exception as error:  # every failure is an outcome
            self.differs(name, f"{type(error).__name__}: {_summary(error)}")
        self.end(name)

    def begin(self, name: str) -> None:
        self._write(begin=name)

    def end(self, name: str) -> None:
        self._write(end=name)

    def same(self, name: str, message: str = "") -> None:
        self._write(case=name, verdict=SAME, message=message)

    def note(self, name: str, message: str) -> None:
        self._write(case=name, verdict=NOTE, message=message)

    def differs(self, name: str, message: str, expected: object = "", actual: object = "") -> None:
        self._write(case=name, verdict=DIFFERS, message=message, expected=str(expected), actual=str(actual))

    def lost(self, name: str, message: str) -> None:
        self._write(case=name, verdict=LOST, message=message)
        self.end(name)

    def judge(
        self, name: str, is_same: bool, message: str, expected: object = "", actual: object = ""
    ) -> None:
        """Write ``same`` or ``differs``."""
        if is_same:
            self.same(name, message)
        else:
            self.differs(name, message, expected, actual)

    def _write(self, **line: object) -> None:
        """Append a line; start a new line if a crash truncated the previous one."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n" * self._is_cut_off() + strict_json.dumps(line) + "\n")

    def _is_cut_off(self) -> bool:
        return self._file.exists() and self._file.read_bytes()[-1:] not in (b"", b"\n")


def read(folder: Path) -> tuple[Outcome, ...]:
    """The outcomes of all ranks; equal outcomes of several ranks are merged."""
    lines_of, ranks_of = _by_rank(folder), {}
    for rank, lines in lines_of.items():
        for line in lines:
            if {"case", "verdict", "message"} <= line.keys() <= _FIELDS and line["verdict"] in VERDICTS:
                ranks_of.setdefault(Outcome(**line), []).append(rank)
    outcomes = []
    for outcome, ranks in ranks_of.items():
        if len(ranks) < len(lines_of) and outcome.verdict in (DIFFERS, LOST):
            outcome = replace(outcome, message=f"rank {', '.join(map(str, ranks))}: {outcome.message}")
        outcomes.append(outcome)
    return tuple(outcomes)


def started_cases(folder: Path) -> set[str]:
    """The cases that any rank has started."""
    return {line["begin"] for lines in _by_rank(folder).values() for line in lines if "begin" in line}


def lost_cases(folder: Path) -> set[str]:
    """The cases whose process died."""
    return {outcome.case for outcome in read(folder) if outcome.verdict == LOST}


def mark_lost(folder: Path, how: str) -> int:
    """Mark unfinished cases as lost and return their number; ``how`` describes how their process ended."""
    count = 0
    for rank, lines in _by_rank(folder).items():
        ended = {line["end"] for line in lines if "end" in line}
        for name in [line["begin"] for line in lines if "begin" in line and line["begin"] not in ended]:
            Journal(folder, rank).lost(name, f"the process {how}")
            count += 1
    return count


def size(folder: Path) -> int:
    """A number that grows with every line that a rank writes."""
    return sum(file.stat().st_size for file in folder.glob("journal.*.jsonl"))


def number(value: float) -> str:
    """Format a number."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _by_rank(folder: Path) -> dict[int, list[dict]]:
    files = [(file.name.split(".")[1], file) for file in sorted(folder.glob("journal.*.jsonl"))]
    return {int(rank): list(_lines(file)) for rank, file in files if rank.isdecimal()}


def _lines(file: Path) -> Iterator[dict]:
    for text in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError):  # the process was killed while writing this line
            line = plain_json.loads(text)
            if isinstance(line, dict) and all(isinstance(value, str) for value in line.values()):
                yield line


def _summary(error: Exception) -> str:
    """The message without the C++ stack trace that Paddle prints before it."""
    text = str(error).strip()
    summary = text.rpartition("Error Message Summary:")[2].strip(" \n-") if "Summary:" in text else text
    return " ".join(summary.split())[:ERROR_CHARACTERS]
