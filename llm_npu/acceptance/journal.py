"""The results of a piece, written check by check, so that they survive the process.

A check is the ``same`` as on the virtual NPU, ``differs``, was ``lost`` with its process, or is a ``note``,
which is not compared. A check that began and did not end shows what the process was doing.
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
SHOWN = 600  # characters of an error
_FIELDS = {"check", "verdict", "what", "expected", "found"}


@dataclass(frozen=True)
class Check:
    """``what`` is the result of ``name``; ``expected`` and ``found`` are set if both can be shown side by
    side."""

    name: str
    verdict: str
    what: str
    expected: str = ""
    found: str = ""


class Journal:
    """Writes to ``folder``; each rank has a file of its own."""

    def __init__(self, folder: Path, rank: int = 0):
        self._file = folder / f"journal.{rank}.jsonl"

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Runs the check ``name`` inside. An exception ends this check only: it differs."""
        self.begins(name)
        try:
            yield
        except Exception as error:  # every failure is a result
            self.differs(name, f"{type(error).__name__}: {_first_lines(error)}")
        self.ends(name)

    def begins(self, name: str) -> None:
        self._write(begins=name)

    def ends(self, name: str) -> None:
        self._write(ends=name)

    def same(self, name: str, what: str = "") -> None:
        self._write(check=name, verdict=SAME, what=what)

    def note(self, name: str, what: str) -> None:
        self._write(check=name, verdict=NOTE, what=what)

    def differs(self, name: str, what: str, expected: object = "", found: object = "") -> None:
        self._write(check=name, verdict=DIFFERS, what=what, expected=str(expected), found=str(found))

    def loses(self, name: str, what: str) -> None:
        self._write(check=name, verdict=LOST, what=what)
        self.ends(name)

    def judge(self, name: str, is_same: bool, what: str, expected: object = "", found: object = "") -> None:
        """``same`` or ``differs``."""
        if is_same:
            self.same(name, what)
        else:
            self.differs(name, what, expected, found)

    def _write(self, **line: object) -> None:
        """Writes a line, starting a new one after a truncated line."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n" * self._is_cut() + strict_json.dumps(line) + "\n")

    def _is_cut(self) -> bool:
        return self._file.exists() and self._file.read_bytes()[-1:] not in (b"", b"\n")


def read(folder: Path) -> tuple[Check, ...]:
    """The checks of all ranks, with equal results of several ranks merged."""
    by_rank, said = _by_rank(folder), {}
    for rank, lines in by_rank.items():
        for line in lines:
            if {"check", "verdict", "what"} <= line.keys() <= _FIELDS and line["verdict"] in VERDICTS:
                said.setdefault(Check(line.pop("check"), **line), []).append(rank)
    checks = []
    for check, ranks in said.items():
        some = len(ranks) < len(by_rank) and check.verdict in (DIFFERS, LOST)
        what = f"rank {', '.join(map(str, ranks))}: {check.what}" if some else check.what
        checks.append(replace(check, what=what))
    return tuple(checks)


def begun(folder: Path) -> set[str]:
    """The names of the checks that any rank has begun."""
    return {line["begins"] for lines in _by_rank(folder).values() for line in lines if "begins" in line}


def lost(folder: Path) -> set[str]:
    """The names of the checks in which a process was lost."""
    return {check.name for check in read(folder) if check.verdict == LOST}


def lose(folder: Path, how: str) -> int:
    """Marks the checks that have begun and not ended as lost, with ``how`` the process ended; returns how
    many."""
    count = 0
    for rank, lines in _by_rank(folder).items():
        began = [line["begins"] for line in lines if "begins" in line]
        done = {line["ends"] for line in lines if "ends" in line}
        journal = Journal(folder, rank)
        for name in began:
            if name not in done:
                journal.loses(name, f"the process {how}")
                count += 1
    return count


def progress(folder: Path) -> int:
    """A number that grows with every line that a rank writes."""
    return sum(file.stat().st_size for file in folder.glob("journal.*.jsonl"))


def number(value: float) -> str:
    """Formats a figure."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _by_rank(folder: Path) -> dict[int, list[dict]]:
    files = [(file.name.split(".")[1], file) for file in sorted(folder.glob("journal.*.jsonl"))]
    return {int(rank): list(_lines(file)) for rank, file in files if rank.isdecimal()}


def _lines(file: Path) -> Iterator[dict]:
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError):  # the process was killed while it wrote this line
            found = plain_json.loads(line)
            if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
                yield found


def _first_lines(error: Exception) -> str:
    """The message without the C++ stack that Paddle prints before it."""
    text = str(error).strip()
    summary = text.rpartition("Error Message Summary:")[2].strip(" \n-") if "Summary:" in text else text
    return " ".join(summary.split())[:SHOWN]
