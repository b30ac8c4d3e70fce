"""The options that benchmarks share; what is wrong with them is said before anything is measured."""

import argparse
import shutil
import sys
from pathlib import Path

from . import machine

PICTURES = ("chart", "growth")


def parser(document: str, torch: bool = True) -> argparse.ArgumentParser:
    """With the options of every benchmark; ``document`` is the script's docstring.

    ``torch``: whether it may take part.
    """
    made = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.set_defaults(torch_python=sys.executable)
    if torch:
        made.add_argument("--torch-python", default=sys.executable, help="an interpreter that has torch")
    made.add_argument("--json", metavar="FILE", help="write the records as JSON lines")
    made.add_argument("--compare", metavar="FILE", help="print ratios to the records of an older run")
    return made


def add_contest(
    parser,
    contenders,
    dtypes,
    rounds: int,
    turns: str,
    quick: str,
    chart: str = "draw the shares of the limit",
) -> None:
    """The options of a contest among chosen contenders and dtypes; the last three are helps."""
    parser.add_argument("--dtype", choices=dtypes, help="default: both")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="default: all cores")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{turns} (default {rounds})")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--malloc", choices=("on", "off", "both"), default="on", help="default on")
    parser.add_argument("--contenders", metavar="NAMES", default=",".join(contenders), help="comma-separated")
    parser.add_argument("--chart", metavar="FILE.png", help=chart)


def parse_contest(parser, contenders, dtypes) -> argparse.Namespace:
    """The arguments of a contest, checked; ``contenders`` becomes a list, ``dtypes`` what --dtype leaves."""
    arguments = parser.parse_args()
    arguments.contenders = [name.strip() for name in arguments.contenders.split(",")]
    for name in arguments.contenders:
        if name not in contenders:
            parser.error(f"--contenders: {name!r} is none; accepted: {', '.join(contenders)}")
    if arguments.threads < 1 or arguments.rounds < 1:
        parser.error("--threads and --rounds must be at least 1")
    arguments.dtypes = (arguments.dtype,) if arguments.dtype else dtypes
    check(parser, arguments)
    return arguments


def end(main) -> None:
    """Ends the script with what ``main`` returns, or with 130 after Ctrl-C."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


def check(parser, arguments) -> None:
    """Ends the script by ``parser.error`` if a result could not be written or torch's Python not started."""
    for name in ("json", *PICTURES):
        file = getattr(arguments, name, None)
        if not file:
            continue
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"--{name} {file}: there is no folder {Path(file).parent}; make it first")
        if Path(file).is_dir():
            parser.error(f"--{name} {file} is a folder; accepted: the name of a file")
        if name in PICTURES and Path(file).suffix.lower() != ".png":
            parser.error(f"--{name} {file}: accepted is a name that ends with .png")
    if shutil.which(arguments.torch_python) is None:
        parser.error(
            f"--torch-python {arguments.torch_python} is no program; accepted: an interpreter that "
            "has torch; leave it out to use this one"
        )
