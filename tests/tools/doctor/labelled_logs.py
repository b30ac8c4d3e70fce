"""Public logs of failures (tests/tools/doctor/failure_logs), labelled as their threads resolved them."""

from collections.abc import Iterator
from typing import NamedTuple

from places import ROOT

FOLDER = ROOT / "tests/tools/doctor/failure_logs"
BEGIN, END_OF_LABELS = "=== ", "---\n"


class FailureLog(NamedTuple):
    """``of``: its set. ``expected``: the failure that the thread names, as ``because`` says, or "none"."""

    name: str
    of: str
    source: str
    expected: str
    because: str
    text: str


def read() -> Iterator[FailureLog]:
    """All logs: those of each topic's file, then the single ones, whose folder is their set."""
    for file in sorted(FOLDER.glob("*.txt")):
        for block in ("\n" + file.read_text(encoding="utf-8").removesuffix("\n")).split(f"\n{BEGIN}")[1:]:
            name, _, labelled = block.partition("\n")
            yield _log(name, labelled + "\n")
    for file in sorted(FOLDER.glob("*/*.txt")):
        yield _log(file.stem, f"set: {file.parent.name}\n{file.read_text(encoding='utf-8')}")


def _log(name: str, labelled: str) -> FailureLog:
    labels, text = labelled.split(END_OF_LABELS, 1)
    fields = dict(line.split(": ", 1) for line in labels.splitlines())
    return FailureLog(name, fields["set"], fields["source"], fields["expected"], fields["because"], text)
