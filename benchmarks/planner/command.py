"""The planner's step times against published runs, each predicted from others.

    python -m benchmarks planner [--write]

``--write`` writes the fitted efficiencies, which plans use, into llm_npu/plan/data/efficiencies.json.
The documentation's build makes a page with a picture of the same results.
"""

import json
from pathlib import Path

from benchmarks import options
from llm_npu.plan.cost import DATA

from . import page
from .fitting import PRIORS
from .validation import Validation, validation


def main(words):
    parser = options.bare("planner", __doc__)
    parser.add_argument("--write", action="store_true", help="write the fitted efficiencies")
    asked = parser.parse_args(words)
    found = validation()
    print(page.table(found))
    print(page.summary(found))
    if asked.write:
        write(found, DATA)
    return 0


def write(found: Validation, data: Path) -> None:
    """Writes the data file into the folder ``data``."""
    values = {name: getattr(found.efficiencies, name) for name in PRIORS}
    fitted = {"efficiencies": values, "error": found.efficiencies.error}
    (data / "efficiencies.json").write_text(json.dumps(fitted, indent=2) + "\n", encoding="utf-8")
