"""The tables of models and operators in docs/fusing.md, one for each library of models.

``python tests/shared/fused_models/table.py`` writes that of the installed library.

A cell is what ``apply_fused_kernels`` reports for the models of the row; tests/models/test_fused_models.py,
and test_formers_models.py and test_vision_models.py in tests/formers/fused, check every cell that says yes.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1]
ROOT = SHARED.parents[1]
sys.path[:0] = [str(SHARED), str(ROOT)]  # it is a program, too

from llm_npu.models import library  # noqa: E402

PAGE = ROOT / "docs/fusing.md"
END = "<!-- end -->"


def title() -> str:
    """The name of the installed library."""
    return {"paddlenlp": "PaddleNLP", "paddleformers": "PaddleFormers"}[library.installed()]


def begin() -> str:
    """The line before its table."""
    return f"<!-- models of {title()} x operators: python tests/shared/fused_models/table.py -->\n"


def markdown() -> str:
    """One row for each model, one column for each operator: yes, or - where it has no such part."""
    modules = {"PaddleNLP": ["families"], "PaddleFormers": ["formers", "vision"]}[title()]
    families = [
        family for name in modules for family in importlib.import_module(f"fused_models.{name}").FAMILIES
    ]
    from fused_models.comparison import built

    operators = dict.fromkeys(operator for family in families for operator in family.operators)
    rows: dict[str, set[str]] = {}
    for family in families:
        for operator in family.operators:
            built(family, operator)  # which asserts that every site of the operator is fused
            rows.setdefault(family.title, set()).add(operator)
    lines = [f"| model of {title()} | " + " | ".join(operators) + " |", "|---|" + "---|" * len(operators)]
    for row, operators_of_row in rows.items():
        lines.append(
            f"| {row} | "
            + " | ".join("yes" if column in operators_of_row else "-" for column in operators)
            + " |"
        )
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table in the page."""
    return PAGE.read_text().partition(begin())[2].partition(END)[0]


def main() -> int:
    import virtual_npu

    virtual_npu.activate()  # before anything imports paddle
    text = PAGE.read_text()
    pattern = re.escape(begin()) + ".*?" + re.escape(END)
    PAGE.write_text(re.sub(pattern, lambda _: begin() + markdown() + END, text, flags=re.DOTALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
