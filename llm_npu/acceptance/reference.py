"""The virtual NPU's reference results, from the file that ``llm-npu accept_card --record`` writes.

operators   case -> the mode that the ascend backend runs (null if it rejects the case), and the error bounds
            of plain Paddle
training    the fingerprint of the inputs; for each quantity, the recorded run and runs that differ from it
            only by rounding
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_npu.core import json_rows

FILE = Path(__file__).parent / "data" / "virtual_npu.json"
# Step metrics that are compared with the recorded ones.
QUANTITIES = ("loss", "grad_norm")
FLOAT32_ROUNDING = 2.0**-24


def read(file: Path = FILE) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def write(recorded: dict, file: Path = FILE) -> None:
    file.write_text(json_rows.dumps(recorded), encoding="utf-8")


def allowed(recorded: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    """The tolerance for each step of the ``recorded`` run.

    Twice the largest distance of ``others`` up to this step, plus 4 rounding units of the largest value. The
    same rule applies to all equivalent runs that differ in summation order.
    """
    bounds, furthest, largest = [], 0.0, 0.0
    for step, value in enumerate(recorded):
        furthest = max(furthest, *(abs(other[step] - value) for other in others))
        largest = max(largest, abs(value))
        bounds.append(2 * furthest + 4 * FLOAT32_ROUNDING * largest)
    return bounds
