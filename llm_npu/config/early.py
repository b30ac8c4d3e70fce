"""Arguments that are needed before paddle may be imported, so before the command line is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .argument_file import split_file
from .profile import FOLDER

OUTPUT_DIR = "output"


def given(argv: Sequence[str], name: str) -> object | None:
    """What the flags in ``argv``, or else their file, give for the argument ``name``; None if nothing."""
    arguments, flags = split_file(argv)
    found = arguments.get(name)
    for position, flag in enumerate(flags):
        word, equals, value = flag.partition("=")
        if word != f"--{name}":
            continue
        if not equals:
            value = flags[position + 1] if position + 1 < len(flags) else ""
        found = value
    return found


def nproc_from(argv: Sequence[str]) -> int:
    """How many processes ``--nproc`` asks for; 1 without it. ValueError unless it is 1 or more."""
    return _count(argv, "nproc", "the number of processes to start", 1)


def max_restarts_from(argv: Sequence[str]) -> int:
    """How often ``--max_restarts`` lets all ranks start again; 0 without it. ValueError unless 0 or more."""
    return _count(argv, "max_restarts", "how often the run may start again when a rank has failed", 0)


def _count(argv: Sequence[str], name: str, what: str, lowest: int) -> int:
    """The whole number given for ``name``; ``lowest`` if there is none."""
    found = given(argv, name)
    if found is None:
        return lowest
    if isinstance(found, bool) or not str(found).isascii() or not str(found).isdigit() or int(found) < lowest:
        raise ValueError(f"--{name} is {found}; give {what}, {lowest} or more")
    return int(found)


def output_dir_from(argv: Sequence[str]) -> str:
    """The folder that the run writes into."""
    found = given(argv, "output_dir")
    return OUTPUT_DIR if found is None else str(found)


def profile_dir_from(argv: Sequence[str]) -> Path | None:
    """The folder that ``--profile`` writes into; None without it."""
    return Path(output_dir_from(argv)).expanduser() / FOLDER if given(argv, "profile") else None
