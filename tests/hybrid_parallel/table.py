"""The table of methods in docs/distributed.md: ``python tests/hybrid_parallel/table.py`` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs/distributed.md"
BEGIN, END = "<!-- methods: python tests/hybrid_parallel/table.py -->\n", "<!-- end -->"


def markdown() -> str:
    """A row for each method that tests/test_hybrid_parallel.py compares with one process."""
    from hybrid_parallel.methods import EIGHT, FOUR, TWO

    precisions: dict[tuple[str, int, str], list[str]] = {}
    for method in (*TWO, *FOUR, *EIGHT):
        row = method.name, method.ranks, method.flags
        precisions.setdefault(row, []).append("bfloat16" if method.bf16 else "float32")
    lines = ["| method | ranks | arguments | dygraph: as one process in |", "|---|---|---|---|"]
    for (name, ranks, flags), found in precisions.items():
        lines.append(
            f"| {name} | {ranks} | `--nproc {ranks}{' ' * bool(flags)}{flags}` | {', '.join(found)} |"
        )
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    sys.path.insert(0, str(TESTS))
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    PAGE.write_text(re.sub(pattern, lambda _: BEGIN + markdown() + END, PAGE.read_text(), flags=re.DOTALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
