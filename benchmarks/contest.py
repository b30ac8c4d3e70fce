"""From the arguments to the records and the exit status; checks that contenders agree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from . import machine, report
from .contenders import Failed, Process

# Relative difference of losses. In bfloat16, weights or activations are rounded to 8 bits in every step.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


class Wrong(Exception):
    """A contender's results are wrong, so nothing is timed."""


def run(arguments: argparse.Namespace, bench: Callable) -> int:
    """Measure, print and write; return the exit status, 1 if a contender is wrong or fails.

    Args:
        bench: ``bench(arguments, malloc, records)`` adds its records with the malloc setting "on" or "off"
            and prints them.
    """
    records = []
    try:
        for malloc in ("off", "on") if arguments.malloc == "both" else (arguments.malloc,):
            bench(arguments, malloc, records)
    except (Wrong, Failed) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        if arguments.json and records:
            report.write(records, arguments.json)
    report.show(*report.goals(records))
    if arguments.older is not None:
        report.show(report.comparison(arguments.older, records))
    return 0


def record_machine(
    records: list[dict], threads: int, malloc: str, processes: Mapping[str, Process] | None = None, **more
) -> None:
    """Add and print the facts that the results depend on: the machine, the versions of ``processes``, and
    ``more``."""
    versions = {name: process.version or process.unavailable for name, process in (processes or {}).items()}
    records.append(
        {**machine.facts(threads), "kind": "machine", "malloc": malloc, "versions": versions, **more}
    )
    report.show(report.facts(records[-1]))


def agree(dtype: str, losses: Mapping[str, Sequence[float]]) -> None:
    """Raises Wrong unless all contenders' losses, step by step, match those of the first."""
    (first, expected), *others = losses.items()
    for name, losses_of_other in others:
        for step, (wanted, loss) in enumerate(zip(expected, losses_of_other, strict=True)):
            if not abs(loss - wanted) <= TOLERANCE[dtype] * abs(wanted):  # also true for NaN
                raise Wrong(
                    f"{dtype} step {step}: the loss is {wanted:.6f} with {first}, {loss:.6f} with {name}"
                )
