"""The table of models and operators in docs/fusing.md.

``python tests/shared/fused_models/table.py`` writes it.

A cell is what ``apply_fused_kernels`` reports for the models of the row; tests/models/test_fused_models.py
checks every cell that says yes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1]
ROOT = SHARED.parents[1]
sys.path[:0] = [str(SHARED), str(ROOT)]  # it is a program, too

PAGE = ROOT / "docs/fusing.md"
BEGIN, END = "<!-- models x operators: python tests/shared/fused_models/table.py -->\n", "<!-- end -->"


def markdown() -> str:
    """One row for each model, one column for each operator: yes, or - where it has no such part."""
    from fused_models.comparison import built
    from fused_models.families import FAMILIES

    operators = dict.fromkeys(operator for family in FAMILIES for operator in family.operators)
    rows: dict[str, set[str]] = {}
    for family in FAMILIES:
        for operator in family.operators:
            built(family, operator)  # which asserts that every site of the operator is fused
            rows.setdefault(family.title, set()).add(operator)
    lines = ["| model of PaddleNLP | " + " | ".join(operators) + " |", "|---|" + "---|" * len(operators)]
    for title, found in rows.items():
        lines.append(
            f"| {title} | " + " | ".join("yes" if each in found else "-" for each in operators) + " |"
        )
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    from paddle_fused import virtual_npu

    virtual_npu.activate()  # before anything imports paddle
    text = PAGE.read_text()
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    PAGE.write_text(re.sub(pattern, lambda _: BEGIN + markdown() + END, text, flags=re.DOTALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
