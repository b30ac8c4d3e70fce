"""Options shared by benchmarks; invalid options are reported before anything is measured."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_npu.models import library, other_library
from paddle_fused import command_line

from . import machine, report
from .work import ITEM_SIZE

DTYPES = tuple(ITEM_SIZE)


def parser(name: str, document: str, torch: bool = True) -> command_line.Parser:
    """A parser with the options of every benchmark that writes records. ``torch``: whether torch is a
    contender."""
    new_parser = command_line.of_document(f"python -m benchmarks {name}", document)
    new_parser.set_defaults(torch_python=sys.executable)
    if torch:
        new_parser.add_argument(
            "--torch-python", default=sys.executable, help="a Python interpreter with torch"
        )
    new_parser.add_argument("--json", metavar="FILE", help="write the records as JSON lines")
    new_parser.add_argument("--compare", metavar="FILE", help="print ratios to the records of an older run")
    return new_parser


def add_contest(parser, contenders, rounds: int, turns: str, quick: str) -> None:
    """Add the options of a contest among selected contenders; the last two arguments are help texts."""
    parser.add_argument("--dtype", choices=DTYPES, help="default: both")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="default: all cores")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{turns} (default {rounds})")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--malloc", choices=("on", "off", "both"), default="on", help="default on")
    parser.add_argument("--contenders", metavar="NAMES", default=",".join(contenders), help="comma-separated")


def parse_contest(parser, words: Sequence[str], contenders) -> argparse.Namespace:
    """Parse and check the arguments of a contest; ``contenders`` becomes a list, ``dtypes`` the selection of
    --dtype."""
    arguments = parser.parse_args(words)
    arguments.contenders = [name.strip() for name in arguments.contenders.split(",")]
    for name in arguments.contenders:
        if name not in contenders:
            parser.error(f"--contenders: unknown {name!r}; accepted: {', '.join(contenders)}")
    if arguments.threads < 1 or arguments.rounds < 1:
        parser.error("--threads and --rounds must be at least 1")
    arguments.dtypes = (arguments.dtype,) if arguments.dtype else DTYPES
    check(parser, arguments)
    return arguments


def need_paddlenlp(parser: argparse.ArgumentParser) -> None:
    """Calls ``parser.error`` in an environment without PaddleNLP, whose models the benchmark trains."""
    if (installed := library.installed_or_none()) != library.PADDLENLP:
        has = other_library.TITLES.get(installed, "no model library")
        parser.error(
            f"it measures PaddleNLP's models, and this environment has {has}; "
            'install PaddleNLP in a separate environment: pip install ".[paddlenlp]"'
        )


def check(parser, arguments) -> None:
    """Call ``parser.error`` if a result cannot be written, or torch's Python cannot be started.

    ``older`` becomes the records in the file of --compare, or None.
    """
    try:
        arguments.older = report.read(arguments.compare) if arguments.compare else None
    except ValueError as error:
        parser.error(str(error))
    if file := arguments.json:
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"--json {file}: the folder {Path(file).parent} does not exist; create it first")
        if Path(file).is_dir():
            parser.error(f"--json {file} is a folder; accepted: the name of a file")
    if shutil.which(arguments.torch_python) is None:
        parser.error(
            f"--torch-python {arguments.torch_python} is not a program; accepted: a Python interpreter with "
            "torch; omit the option to use this interpreter"
        )
