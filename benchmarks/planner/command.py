"""The planner's step times against published runs.

    python -m benchmarks planner [--write]

``--write`` writes the fitted efficiencies and the error widths of families, which plans use, to
llm_npu/plan/data/efficiencies.json. The documentation's build creates a page with a picture of the same
results.
"""

import dataclasses
from pathlib import Path

from benchmarks import options
from llm_npu.plan.cost import DATA
from llm_npu.plan.interval import FAMILIES, OTHER
from paddle_fused import strict_json

from . import page
from .validation import Validation, validation

USED = ("cube", "attention", "hidden", "memory", "links")  # the fitted parameters that plans use


def main(words):
    parser = options.bare("planner", __doc__)
    parser.add_argument("--write", action="store_true", help="write the parameters that plans use")
    arguments = parser.parse_args(words)
    validated = validation()
    if arguments.write:
        write(validated, DATA)
    print(page.table(validated))
    print(page.summary(validated))
    return 0


def write(validation: Validation, data: Path) -> None:
    """Write the data file to the folder ``data``."""
    values = {name: getattr(validation.efficiencies, name) for name in USED}
    families = {name: dataclasses.asdict(validation.families[name]) for name in (*FAMILIES, OTHER)}
    text = strict_json.dumps({"efficiencies": values, "families": families}, indent=2)
    (data / "efficiencies.json").write_text(text + "\n", encoding="utf-8")
