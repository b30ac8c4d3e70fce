"""The planner's step times against published runs, each predicted from others.

    python -m benchmarks planner [--write]

``--write`` writes the fitted efficiencies, which plans use, into llm_npu/plan/data/efficiencies.json, and
docs/planning_validation.md with its picture.
"""

import json
from pathlib import Path

from benchmarks import ROOT, options
from llm_npu.plan.cost import DATA

from . import page
from .fitting import PRIORS
from .validation import Validation, validation


def main(words):
    parser = options.bare("planner", __doc__)
    parser.add_argument("--write", action="store_true", help="write the data file, the page and its picture")
    asked = parser.parse_args(words)
    found = validation()
    print(page.table(found))
    print(page.summary(found))
    if asked.write:
        write(found, DATA, ROOT / "docs")
    return 0


def write(found: Validation, data: Path, docs: Path) -> None:
    """The data file in ``data``, the page and its picture in ``docs``."""
    values = {name: getattr(found.efficiencies, name) for name in PRIORS}
    fitted = {"efficiencies": values, "error": found.efficiencies.error}
    (data / "efficiencies.json").write_text(json.dumps(fitted, indent=2) + "\n", encoding="utf-8")
    (docs / "planning_validation.md").write_text(page.page(found), encoding="utf-8")
    page.chart(found, docs / "images" / "planning_validation.png")
