"""Runs a report's program and says what became of it."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import ranks

from .report import Report

HANG = 10  # seconds without an end, after the last line, that make a hang of programs that take no time


@dataclass(frozen=True)
class Outcome:
    """``text``: what it printed, of rank 0. ``ends``: as in a report."""

    text: str
    errors: str
    ends: str

    def printed(self, lines: str) -> bool:
        """Whether it printed these lines, one after the other."""
        expected = [_pattern(line) for line in lines.splitlines()]
        lines_printed = self.text.splitlines()
        return any(
            all(pattern.fullmatch(line) for pattern, line in zip(expected, lines_printed[at:], strict=False))
            for at in range(len(lines_printed) - len(expected) + 1)
        )

    def failed_with(self, error: str) -> bool:
        return any(_pattern(error).fullmatch(line.strip()) for line in self.errors.splitlines())


def _pattern(line: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, line.split("..."))))


def run(report: Report, folder: Path, start_python) -> Outcome:
    """What becomes of the program, started by the fixture ``start_python`` or, on several ranks, here."""
    if report.processes > 1:
        return _run_ranks(report, folder)
    command = ["-m", "virtual_npu"] if report.fields["device"] == "npu" else []
    log = folder / "printed.txt", folder / "errors.txt"
    with log[0].open("w") as printed, log[1].open("w") as errors:
        process = start_python(*command, report.file, stdout=printed, stderr=errors, **report.environment)
        ends = _end(process, report, log[0])
        process.kill()
    return Outcome(log[0].read_text(), log[1].read_text(), ends)


def _run_ranks(report: Report, folder: Path) -> Outcome:
    log = folder / "0.log"
    with ranks.started(report.file, report.processes, folder, **report.environment) as processes:
        ends = [_end(process, report, log) for process in processes]
    text = log.read_text(errors="replace")
    return Outcome(text, text, next((end for end in ends if end != "exit 0"), "exit 0"))


def _end(process, report: Report, log: Path) -> str:
    limit = time.monotonic() + ranks.TIMEOUT
    hanging_since = None
    while process.poll() is None:
        time.sleep(0.1)
        now = time.monotonic()
        if report.ends == "hangs" and hanging_since is None:
            hanging_since = now if Outcome(log.read_text(), "", "").printed(report.fields["prints"]) else None
        if now > limit or (hanging_since and now - hanging_since > HANG):
            return "hangs"
    return (
        signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit {process.returncode}"
    )


def problem(report: Report, outcome: Outcome) -> str | None:
    """Why the outcome is not the defect; None if it is."""
    if outcome.ends == "exit 0" and outcome.printed(report.fields["should print"]):
        workarounds = ", ".join(report.workarounds) or "(there is none)"
        return (
            f"{report.name} is fixed: remove the workaround {workarounds}, or limit it to releases before "
            "this one, and move the report to defects/fixed.py."
        )
    if outcome.ends != report.ends:
        return f"{report.name}: the program ends with {outcome.ends}, and the report says {report.ends}."
    if not outcome.printed(report.fields.get("prints", "")):
        return f"{report.name}: the program printed neither what the report says nor what it should."
    error = report.fields.get("error")
    if error and not outcome.failed_with(error):
        return f"{report.name}: the program failed with another error than {error!r}."
    return None
