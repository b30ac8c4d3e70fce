"""The virtual NPU's results, from the file that ``llm-npu accept_card --record`` writes.

operators   case -> the mode in which the ascend backend runs it (null if it refuses), and the bounds of
            plain Paddle's errors
training    the fingerprint of the inputs, and for each quantity the recorded run and runs that differ from
            it by rounding only
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_npu.core import json_rows

FILE = Path(__file__).parent / "data" / "virtual_npu.json"
# The metrics of a step that are compared with the recorded ones.
QUANTITIES = ("loss", "grad_norm")
FLOAT32_ROUNDING = 2.0**-24


def read(file: Path = FILE) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def write(recorded: dict, file: Path = FILE) -> None:
    file.write_text(json_rows.dumps(recorded), encoding="utf-8")


def allowed(recorded: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    """The allowed distance from ``recorded``, by step.

    Twice the largest distance of ``others`` up to this step, plus 4 roundings of the largest value: the rule
    for equivalent runs that differ in the order of their sums.
    """
    bounds, furthest, largest = [], 0.0, 0.0
    for step, value in enumerate(recorded):
        furthest = max(furthest, *(abs(other[step] - value) for other in others))
        largest = max(largest, abs(value))
        bounds.append(2 * furthest + 4 * FLOAT32_ROUNDING * largest)
    return bounds
