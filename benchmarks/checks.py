"""Planted bugs that VIRTUAL_NPU_CHECK finds, and false alarms on their corrected programs.

    python -m benchmarks checks [--check race,init,memory,sync] [--program NAME,...]

Each program in tests/virtual_npu/checks/corpus contains one bug. It runs with its check. The finding must
name the line with the comment "# planted" and, if it names two lines, the line with "# other side". The
same program with the argument "corrected" runs with all checks, which must report nothing. Programs of the
sync check wait for the device in each step, and the corrected programs at most once.

The exit status is 1 if a bug is not found at its line or a corrected program is reported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from llm_npu.report.table import Table, shortened
from paddle_fused import command_line

CORPUS = ROOT / "tests" / "virtual_npu" / "checks" / "corpus"
CHECKS = ("race", "init", "memory", "sync")  # folders of the corpus
RANKS = 2  # of a program with collectives
STEPS = 8  # of a program of the sync check
TIMEOUT = 300  # seconds


@dataclass(frozen=True)
class Program:
    """A program with a planted bug."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def check(self) -> str:
        return self.file.parent.name

    @property
    def ranks(self) -> int:
        return RANKS if "init_parallel_env()" in self.file.read_text() else 1

    def lines(self) -> list[int]:
        """The planted line and, if the finding names two lines, the other one."""
        source = self.file.read_text().splitlines()
        marked = [
            [number for number, line in enumerate(source, 1) if line.endswith(mark)]
            for mark in ("# planted", "# other side")
        ]
        return [*marked[0], *marked[1]]


@dataclass(frozen=True)
class Result:
    """What the checks report of a program.

    Attributes:
        is_found: the finding names the planted bug's lines.
        false_alarm: what the checks report of the corrected program, or "".
        output: the output of the program with the bug.
    """

    program: Program
    is_found: bool
    false_alarm: str
    output: str


def programs(checks: Iterable[str] = CHECKS) -> list[Program]:
    return [Program(file) for check in checks for file in sorted((CORPUS / check).glob("*.py"))]


def run(program: Program) -> Result:
    output = _output(program, program.check)
    corrected = _output(program, ",".join(CHECKS), "corrected")
    if program.check == "sync":
        is_found = _waits(program, output).get(program.lines()[0], 0) >= STEPS
        repeated = [line for line, waits in _waits(program, corrected).items() if waits > 1]
        alarm = f"repeated waits at line {repeated[0]}" if repeated else ""
    else:
        is_found, alarm = _is_named(program, output), ""
    return Result(program, is_found, alarm or _alarm(corrected), output)


def _output(program: Program, checks: str, *arguments: str) -> str:
    """The output of all ranks, and a last line with the exit status unless it is 0."""
    with tempfile.TemporaryDirectory() as folder:
        several = ("-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", folder)
        command = [sys.executable, "-m", "virtual_npu", *(several if program.ranks > 1 else ())]
        changed = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "VIRTUAL_NPU_CHECK": checks,
            "VIRTUAL_NPU_QUIET": "1",
            "OMP_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(
                [*command, str(program.file), *arguments],
                env={**os.environ, **changed},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {TIMEOUT} s"
        logs = [file.read_text(errors="replace") for file in sorted(Path(folder).glob("workerlog.*"))]
    return "\n".join([done.stdout, *logs] + [f"exited with {done.returncode}"] * (done.returncode != 0))


def _findings(output: str) -> list[str]:
    return re.findall(r"VIRTUAL_NPU_CHECK \(.*", output)


def _is_named(program: Program, output: str) -> bool:
    """Whether the first finding of a rank is of the program's check and names all its lines."""
    return any(
        finding.startswith(f"VIRTUAL_NPU_CHECK ({program.check})")
        and all(re.search(rf"\b{program.file.name}:{line}\b", finding) for line in program.lines())
        for finding in _findings(output)
    )


def _alarm(output: str) -> str:
    ended = re.search(r"(exited with|did not end) .*$", output)
    return next(iter(_findings(output)), ended.group() if ended else "")


def _waits(program: Program, output: str) -> dict[int, int]:
    """Waits of the host by line, of those that wait more than once: rows of the sync check's table."""
    rows = re.findall(rf"^ *(\d+) .*\b{program.file.name}:(\d+) in ", output, re.MULTILINE)
    return {int(line): int(waits) for waits, line in rows if int(waits) > 1}


def table(results: Sequence[Result]) -> Table:
    rows = [
        [
            result.program.name,
            result.program.check,
            str(result.program.ranks),
            " and ".join(map(str, result.program.lines())) if result.is_found else "not found",
            shortened(result.false_alarm, 100) or "clean",
        ]
        for result in results
    ]
    detected = sum(result.is_found for result in results)
    alarms = sum(bool(result.false_alarm) for result in results)
    remark = f"{detected} of {len(results)} found, {alarms} false alarms"
    columns = ["program", "check", "ranks", "found at line", "corrected program"]
    return Table("Planted bugs and corrected programs", columns, rows, len(columns), remark)


def main(words: Sequence[str]) -> int:
    parser = command_line.of_document("python -m benchmarks checks", __doc__)
    parser.add_argument("--check", default=",".join(CHECKS), help="default: all checks")
    parser.add_argument("--program", help="default: all programs of the checks")
    arguments = parser.parse_args(words)
    checks = arguments.check.split(",")
    for check in checks:
        if check not in CHECKS:
            parser.error(f"--check: unknown {check!r}; accepted: {', '.join(CHECKS)}")
    chosen = programs(checks)
    if arguments.program:
        names = arguments.program.split(",")
        for name in names:
            if name not in {program.name for program in chosen}:
                parser.error(f"--program: unknown {name!r}; accepted: {', '.join(p.name for p in chosen)}")
        chosen = [program for program in chosen if program.name in names]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // RANKS)) as executor:
        results = list(executor.map(run, chosen))
    print(table(results).text())
    return int(not all(result.is_found and not result.false_alarm for result in results))
