"""Evidence from a card: runs every part of the project on it, compares it with the virtual NPU, and collects
the results in a folder to send.

    llm-npu accept_card                                # all cards, at most 8, in at most 20 minutes
    llm-npu accept_card --only operators adamw
    llm-npu accept_card --device virtual_npu --cards 2 # the same without a card

Each piece is a separate process with a time limit: one that crashes, hangs or finds a wrong number is named,
and the next one starts. The folder --output_dir gets index.html, which begins with the differences from the
virtual NPU, and result.json. They name no host, user or folder; nothing is sent anywhere.

Exit codes: 0 everything is as on the virtual NPU; 1 something differs; 2 bad input, with one sentence on
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
from .pieces import BY_NAME, OF_THE_VIRTUAL_NPU, PIECES, Job, Piece
from .result import JSON, PAGE, Finished, Result
from .scrub import Scrubber

DEVICES = ("npu", "npu:card", "virtual_npu")
MOST_CARDS = 8
CARDS_OF_A_HOST = 2  # on the virtual NPU: each rank needs a core
TAIL = 6000  # characters of a log to keep
SHOWN = 5  # differences per piece shown on the terminal


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.of_document("llm-npu accept_card", __doc__)
    add = parser.add_argument
    add(
        "--output_dir", type=paths.given, default=Path("acceptance"), help="the result's folder, new or empty"
    )
    add("--device", default="npu", help=", ".join(DEVICES) + " (default: npu)")
    add("--cards", type=int, help="how many to use (default: all, at most 8; of the virtual NPU 2)")
    add("--card", default="910b", help="the cards' name for the planner, such as 910b2 (default: 910b)")
    add("--only", nargs="+", choices=list(BY_NAME), metavar="PIECE", help=", ".join(BY_NAME))
    add("--minutes", type=float, default=20.0, help="for everything (default: 20)")
    add(
        "--record",
        action="store_true",
        help="record the virtual NPU's results anew; cards are compared with them",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Exit code: 1 if something differs or is lost."""
    options = parse(argv)
    if options.minutes <= 0:
        raise UserError(f"--minutes is {options.minutes:g}; give a number above zero")
    cards.card(options.card)  # before anything runs: rejects misspelt names
    if options.device not in DEVICES:
        raise UserError(f"--device is {options.device}; give one of {', '.join(DEVICES)}")
    if options.record:
        return _record()
    chosen = device.select(options.device)
    count = _count(options.cards, chosen)
    folder = options.output_dir.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output_dir is {folder}, which is not an empty folder; give a new one")
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(chosen.kind, count)
    print(f"device   {result.label}, {count} used", flush=True)
    stopping.subscribe(stopping.stop)  # its children end with it
    scrubber, began = Scrubber(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="acceptance-", ignore_cleanup_errors=True) as work:
        for piece in [piece for piece in PIECES if piece.name in (options.only or BY_NAME)]:
            left = options.minutes * 60 - (time.monotonic() - began)
            result.pieces.append(_finished(piece, Path(work), options, result, left))
            result.seconds = time.monotonic() - began
            result.write(folder, scrubber)
            last = result.pieces[-1]
            print(f"{piece.name:12} {last.verdict:9} {last.seconds:5.0f} s  {piece.title}", flush=True)
    return _ended(result, folder)


def _count(asked: int | None, chosen: device.Device) -> int:
    is_card = chosen.kind == "card"
    there = min(MOST_CARDS, device.find_cards().count if is_card else virtual_npu.device_count())
    if asked is not None and not 1 <= asked <= there:
        raise UserError(f"--cards is {asked}; give 1 to {there}")
    return asked or (there if is_card else min(CARDS_OF_A_HOST, there))


def _finished(piece: Piece, work: Path, options: argparse.Namespace, result: Result, left: float) -> Finished:
    if result.cards < piece.cards:
        return Finished(piece.name, piece.title, left_out=f"it needs {piece.cards} cards")
    if left <= 0:
        return Finished(piece.name, piece.title, left_out=f"the {options.minutes:g} minutes were over")
    folder, shared = work / piece.name, work / "shared"
    folder.mkdir()
    shared.mkdir(exist_ok=True)
    job = Job(piece.name, folder, shared, result.device, options.device, result.cards, options.card)
    began = time.monotonic()
    allowed = piece.seconds * (OF_THE_VIRTUAL_NPU if job.is_virtual else 1)
    _run(piece, job, min(allowed, left))
    checks = journal.read(folder)
    if not checks:
        checks = (journal.Check(piece.name, journal.LOST, "it ended without a message"),)
    text, log = (
        file.read_text(errors="replace") if file.exists() else ""
        for file in (folder / "text.txt", folder / "log.txt")
    )
    found = Finished(piece.name, piece.title, checks, time.monotonic() - began, text=text)
    return found if found.verdict == "same" else replace(found, log=log[-TAIL:])


def _run(piece: Piece, job: Job, seconds: float) -> None:
    """Runs the piece in a process; after each lost check, another process continues after it."""
    until = time.monotonic() + seconds
    while True:
        end = process.run(
            [sys.executable, "-m", f"{__package__}.pieces", str(job.write())],
            job.folder / "log.txt",
            _environment(os.environ),
            max(0.0, until - time.monotonic()),
            piece.silence,
            lambda: journal.progress(job.folder),
        )
        if not end.how:
            return
        in_a_check = journal.lose(job.folder, end.how)
        if not in_a_check:
            journal.Journal(job.folder).loses(f"the process of {piece.name}", f"it {end.how}")
        if not (in_a_check and piece.goes_on) or time.monotonic() >= until:
            return


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Keeps Paddle's logs, except errors, and the virtual NPU's banner from hiding a piece's output."""
    return {"GLOG_minloglevel": "2", "VIRTUAL_NPU_QUIET": "1", **environ, "PYTHONUNBUFFERED": "1"}


def _ended(result: Result, folder: Path) -> int:
    for piece in result.pieces:
        different = [check for name, check in result.differences if name == piece.name]
        for check in different[:SHOWN]:
            print(printable(f"{check.verdict:8} {piece.name}, {check.name}: {check.what}"))
        if len(different) > SHOWN:
            print(f"{'':8} {piece.name}: and {len(different) - SHOWN} more")
    ran = [piece for piece in result.pieces if not piece.left_out]
    same = sum(piece.verdict == "same" for piece in ran)
    print(
        f"result   {same} of {len(ran)} pieces as on the virtual NPU, in {result.seconds:.0f} s, "
        f"on: {result.label}"
    )
    print(f"         {folder / PAGE} and {JSON}")
    return 1 if result.differences else 0


def _record() -> int:
    """Writes the virtual NPU's results into the package's data."""
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
