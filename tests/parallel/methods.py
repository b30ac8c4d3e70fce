"""The parallel methods that are tested, and the table of docs/auto_parallel.md about them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "auto_parallel.md"
MODES = ("dygraph", "static")

TWO = {
    "tensor parallel, mp=2": {"mp": 2},
    "tensor and sequence parallel, mp=2": {"mp": 2, "sequence_parallel": True},
    "data parallel, dp=2": {"dp": 2},
    "sharding stage 1, dp=2": {"dp": 2, "sharding": 1},
    "sharding stage 2, dp=2": {"dp": 2, "sharding": 2},
    "sharding stage 3, dp=2": {"dp": 2, "sharding": 3},
    "recompute, mp=2": {"mp": 2, "recompute": True},
    "gradient accumulation, mp=2": {"mp": 2, "accumulation": 2},
    "gradient accumulation, dp=2": {"dp": 2, "accumulation": 2},
}
FOUR = {
    "data and tensor parallel, dp=2, mp=2": {"dp": 2, "mp": 2},
    "data, tensor and sequence parallel, sharding stage 1, dp=2, mp=2": {
        "dp": 2,
        "mp": 2,
        "sequence_parallel": True,
        "sharding": 1,
    },
}
METHODS = {**TWO, **FOUR}


def in_docs() -> dict[str, dict[str, str]]:
    """The table's cells, by method and mode."""
    rows = re.findall(r"^\| ([^|]*=\d) \| (\w+) \| (\w+) \|$", DOCS.read_text(), re.MULTILINE)
    return {method: dict(zip(MODES, cells, strict=True)) for method, *cells in rows}
