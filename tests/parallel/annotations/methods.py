"""The methods of auto-parallel that are tested."""

from __future__ import annotations

import math
import re

from methods_table import MODES, Case

TWO = {
    "tensor parallel, tp=2": {"tp": 2},
    "tensor and sequence parallel, tp=2": {"tp": 2, "sequence_parallel": True},
    "data parallel, dp=2": {"dp": 2},
    "sharding stage 1, dp=2": {"dp": 2, "sharding": 1},
    "sharding stage 2, dp=2": {"dp": 2, "sharding": 2},
    "sharding stage 3, dp=2": {"dp": 2, "sharding": 3},
    "recompute, tp=2": {"tp": 2, "recompute": True},
    "gradient accumulation, tp=2": {"tp": 2, "accumulation": 2},
    "gradient accumulation, dp=2": {"dp": 2, "accumulation": 2},
    "pipeline, pp=2": {"pp": 2, "accumulation": 2},
    "pipeline of one micro batch, recompute, pp=2": {"pp": 2, "recompute": True},
}
FOUR = {
    "data and tensor parallel, dp=2, tp=2": {"dp": 2, "tp": 2},
    "data, tensor and sequence parallel, sharding stage 1, dp=2, tp=2": {
        "dp": 2,
        "tp": 2,
        "sequence_parallel": True,
        "sharding": 1,
    },
    "data parallel and pipeline, dp=2, pp=2": {"dp": 2, "pp": 2, "accumulation": 2},
    "sharding stage 2 and pipeline, dp=2, pp=2": {"dp": 2, "pp": 2, "accumulation": 2, "sharding": 2},
    "tensor and sequence parallel and pipeline, tp=2, pp=2": {
        "tp": 2,
        "pp": 2,
        "accumulation": 2,
        "sequence_parallel": True,
    },
}
METHODS = {**TWO, **FOUR}


def cases(processes: int | None = None) -> list[tuple[str, str, str]]:
    """(method, mode, precision) of all tests; or of those on so many processes."""
    chosen = {None: METHODS, 2: TWO, 4: FOUR}[processes]
    return [
        (method, mode, precision)
        for precision in ("float32", "bfloat16")
        for method in chosen
        for mode in MODES
    ]


def row(method: str, mode: str, precision: str) -> Case:
    """What the table of docs/distributed.md says about a test."""
    settings_of_method = METHODS[method]
    degrees = [settings_of_method[axis] for axis in ("dp", "tp", "pp") if axis in settings_of_method]
    name = re.sub(r"(, \w\w=\d)+$", "", method)
    settings = ", ".join(f"{name}={value}" for name, value in settings_of_method.items())
    on_a_card = precision == "bfloat16"  # as tests/parallel/annotations/llama.py runs it
    return Case(f"auto-parallel: {name}", math.prod(degrees), settings, mode, precision, on_a_card)
