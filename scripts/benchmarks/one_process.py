"""A benchmark that measures in this very process, on the virtual NPU: its options, output and exit status."""

import argparse
import json
import sys
from collections.abc import Callable

from paddle_fused import virtual_npu


class Disagreement(Exception):
    """What was to be compared has computed different numbers: there is nothing to time."""


def main(
    document: str, bench: Callable[[int], dict], text: Callable[[dict], str], rounds: int, turns: str
) -> int:
    """Runs ``bench(rounds)`` and prints its result; returns the exit status, 1 after a `Disagreement`.

    ``document`` is the script's docstring, ``rounds`` the default, ``turns`` what a round consists of.
    """
    parser = argparse.ArgumentParser(description=document.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{turns} (default {rounds})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    virtual_npu.activate()
    try:
        result = bench(arguments.rounds)
    except Disagreement as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if arguments.json else text(result))
    return 0


def heading(facts: dict) -> str:
    """The first line of a table; ``facts`` are those of `machine`."""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads, commit {facts['commit']}"
    )


def goal(met: bool, what: str) -> str:
    """A line of its end."""
    return f"goal {'met' if met else 'MISSED'}: {what}"
