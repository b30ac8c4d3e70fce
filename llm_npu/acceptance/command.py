"""Compare a card with the virtual NPU in every part of the project, and collect the results in a folder.

    llm-npu accept_card                                # all cards (at most 8), within 20 minutes
    llm-npu accept_card --only operators adamw
    llm-npu accept_card --device virtual_npu --cards 2 # the same without a card

Each check runs in its own process with a time limit. A crash, a hang or a wrong number is reported, and the
next check starts. --output_dir receives result.json and index.html, which lists the differences from the
virtual NPU first. Neither file names a host, user or folder. Nothing is uploaded.

Exit codes: 0 all results match the virtual NPU; 1 something differs; 2 bad input, with one sentence on
stderr. docs/accept_card.md lists the checks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import virtual_npu
from llm_npu import device
from llm_npu.core import cards, paths, stopping
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted.plain_text import printable
from paddle_fused import command_line

from . import journal, process, reference
from .checks import BY_NAME, CHECKS, VIRTUAL_TIME_FACTOR, Check, Job
from .result import JSON, PAGE, Finished, Result
from .scrub import Scrubber

DEVICES = ("npu", "npu:card", "virtual_npu")
MAX_CARDS = 8
MAX_VIRTUAL_CARDS = 2  # default: each rank needs a core
LOG_CHARACTERS = 6000  # characters kept from the end of a log
SHOWN = 5  # differences per check printed on the terminal


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.of_document("llm-npu accept_card", __doc__)
    add = parser.add_argument
    add(
        "--output_dir",
        type=paths.path_argument,
        default=Path("acceptance"),
        help="folder for the result; new or empty",
    )
    add("--device", default="npu", help=", ".join(DEVICES) + " (default: npu)")
    add("--cards", type=int, help="number of cards (default: all, at most 8; virtual NPU: 2)")
    add("--card", default="910b", help="card name for the planner, for example 910b2 (default: 910b)")
    add("--only", nargs="+", choices=list(BY_NAME), metavar="CHECK", help=", ".join(BY_NAME))
    add("--minutes", type=float, default=20.0, help="time limit of the whole run (default: 20)")
    add(
        "--record",
        action="store_true",
        help="record new reference results of the virtual NPU, with which cards are compared",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Returns exit code 1 if a case differs or was lost."""
    options = parse(argv)
    if options.minutes <= 0:
        raise UserError(f"--minutes is {options.minutes:g}; specify a number above zero")
    cards.card(options.card)  # rejects unknown names before anything runs
    if options.device not in DEVICES:
        raise UserError(f"--device is {options.device}; accepted: {', '.join(DEVICES)}")
    if options.record:
        return _record()
    chosen = device.select(options.device)
    count = card_count(options.cards, chosen)
    folder = options.output_dir.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output_dir is {folder}, which is not an empty folder; specify a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(chosen.kind, count)
    print(f"device   {result.label}, {count} used", flush=True)
    stopping.subscribe(stopping.stop)  # child processes end with this process
    scrubber, start = Scrubber(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="acceptance-", ignore_cleanup_errors=True) as work:
        for check in CHECKS:
            if options.only and check.name not in options.only:
                continue
            left = options.minutes * 60 - (time.monotonic() - start)
            finished = _finished(check, Path(work), options, result, left)
            result.checks.append(finished)
            result.seconds = time.monotonic() - start
            result.write(folder, scrubber)
            print(
                f"{check.name:13} {finished.verdict:9} {finished.seconds:5.0f} s  {check.title}", flush=True
            )
    return _print_summary(result, folder)


def card_count(requested: int | None, chosen: device.Device) -> int:
    """The number of cards to use."""
    is_card = chosen.kind == "card"
    available = min(MAX_CARDS, device.find_cards().count if is_card else virtual_npu.device_count())
    if requested is not None and not 1 <= requested <= available:
        raise UserError(f"--cards is {requested}; accepted: 1 to {available}")
    return requested or (available if is_card else min(MAX_VIRTUAL_CARDS, available))


def _finished(check: Check, work: Path, options: argparse.Namespace, result: Result, left: float) -> Finished:
    if result.cards < check.cards:
        return Finished(check.name, check.title, left_out=f"requires {check.cards} cards")
    if left <= 0:
        return Finished(check.name, check.title, left_out=f"the {options.minutes:g} minutes were used up")
    folder, shared = work / check.name, work / "shared"
    folder.mkdir()
    shared.mkdir(exist_ok=True)
    job = Job(check.name, folder, shared, result.device, options.device, result.cards, options.card)
    start = time.monotonic()
    _run(check, job, min(check.seconds * (VIRTUAL_TIME_FACTOR if job.is_virtual else 1), left))
    cases = journal.read(folder)
    if not cases:
        cases = (journal.Outcome(check.name, journal.LOST, "its process exited without a message"),)
    text, log = (
        file.read_text(errors="replace") if file.exists() else ""
        for file in (folder / "text.txt", folder / "log.txt")
    )
    finished = Finished(check.name, check.title, cases, time.monotonic() - start, text=text)
    return finished if finished.verdict == "same" else replace(finished, log=log[-LOG_CHARACTERS:])


def _run(check: Check, job: Job, seconds: float) -> None:
    """Run the check in a process. After a lost case, a new process may continue with the next case."""
    deadline = time.monotonic() + seconds
    while True:
        failure = process.run(
            [sys.executable, "-m", f"{__package__}.checks", str(job.write())],
            job.folder / "log.txt",
            _environment(os.environ),
            max(0.0, deadline - time.monotonic()),
            check.silence,
            lambda: journal.size(job.folder),
        )
        if not failure:
            return
        in_a_case = journal.mark_lost(job.folder, failure)
        if not in_a_case:
            journal.Journal(job.folder).lost(f"the process of {check.name}", f"it {failure}")
        if not (in_a_case and check.restarts) or time.monotonic() >= deadline:
            return


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Suppress Paddle's logs except errors, and the virtual NPU's banner."""
    return {"GLOG_minloglevel": "2", "VIRTUAL_NPU_QUIET": "1", **environ, "PYTHONUNBUFFERED": "1"}


def _print_summary(result: Result, folder: Path) -> int:
    for check in result.checks:
        different = [outcome for name, outcome in result.differences if name == check.name]
        for outcome in different[:SHOWN]:
            print(printable(f"{outcome.verdict:8} {check.name}, {outcome.case}: {outcome.message}"))
        if len(different) > SHOWN:
            print(f"{'':8} {check.name}: and {len(different) - SHOWN} more")
    ran = [check for check in result.checks if not check.left_out]
    same = sum(check.verdict == "same" for check in ran)
    print(
        f"result   {same} of {len(ran)} checks match the virtual NPU, in {result.seconds:.0f} s, "
        f"on: {result.label}"
    )
    print(f"         {folder / PAGE} and {JSON}")
    return 1 if result.differences else 0


def _record() -> int:
    """Write the virtual NPU's results to the package data."""
    device.select("virtual_npu")
    os.environ.update(_environment(os.environ))
    with tempfile.TemporaryDirectory(prefix="acceptance-") as work:
        folder = Path(work)
        job = Job("training", folder, folder / "shared", "virtual", "virtual_npu", 1, "910b")
        job.shared.mkdir()
        from . import operators, training

        reference.write({"operators": operators.record(), "training": training.record(job)})
    print(f"recorded {reference.FILE}")
    return 0
