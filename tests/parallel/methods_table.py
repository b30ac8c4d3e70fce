"""The table of parallel methods in docs/distributed.md, of the tests that compare each with one process.

    python tests/parallel/methods_table.py    runs all of them, the slow ones too, and writes what has passed

A test hands over its ``Case`` with ``record_property(*case.recorded)``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/distributed.md"
FILES = ("test_hybrid_parallel.py", "test_parallel_llama.py")
BEGIN, END = "<!-- methods: python tests/parallel/methods_table.py -->\n", "<!-- end -->"
MODES = ("dygraph", "static")
FUSED = "fused on a card"
NAME = "parallel method"


class Case(NamedTuple):
    """A way to share a run between ``processes``, of which ``given`` tells the program."""

    method: str
    processes: int
    flags: str
    mode: str
    precision: str = "float32"
    on_a_card: bool = False  # the test allows the plugin's operators only, and no kernel that a card has not

    @property
    def recorded(self) -> tuple[str, tuple]:
        """What pytest's ``record_property`` takes; of plain types, which pytest-xdist can send."""
        return NAME, tuple(self)


class Results:
    """A plugin of pytest: ``found`` is {Case: whether its test has passed} of the tests that ran."""

    def __init__(self):
        self.passed: dict[Case, bool] = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.passed |= {
                Case(*case): report.passed for name, case in report.user_properties if name == NAME
            }


def listed() -> list[Case]:
    """Those of all tests, in the order of the table."""
    from annotations.methods import cases, row
    from hybrid_parallel.methods import EIGHT, FOUR, TWO

    return [*(method.case for method in (*TWO, *FOUR, *EIGHT)), *(row(*case) for case in cases())]


def markdown(passed_cases: Mapping[Case, bool]) -> str:
    """A row for each method; a cell has the precisions in which it trains as one process does."""
    columns = (*MODES, FUSED)
    rows: dict[tuple[str, int, str], dict[str, list[str]]] = {}
    for case, passed in passed_cases.items():
        cells = rows.setdefault(case[:3], {column: [] for column in columns})
        cells[case.mode].append(case.precision if passed else f"not in {case.precision}")
        if case.on_a_card and passed:
            cells[FUSED].append(case.mode)
    lines = [f"| method | processes | given | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for (method, processes, flags), cells in rows.items():
        results = " | ".join(", ".join(cells[column]) or "-" for column in columns)
        lines.append(f"| {method} | {processes} | `{flags}` | {results} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    import pytest  # not above: the ranks that train read `Case`

    results = Results()
    code = pytest.main([*(str(HERE / file) for file in FILES), "-m", "slow or not slow"], plugins=[results])
    sys.path.insert(0, str(HERE))
    results_of = {case: results.passed[case] for case in listed() if case in results.passed}
    pattern, table = re.escape(BEGIN) + ".*?" + re.escape(END), BEGIN + markdown(results_of) + END
    PAGE.write_text(re.sub(pattern, lambda _: table, PAGE.read_text(), flags=re.DOTALL))
    return code


if __name__ == "__main__":
    sys.exit(main())
