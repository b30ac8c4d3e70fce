"""Optimizer steps as an argument names them."""

from __future__ import annotations

import re


def steps_of(text: str) -> range:
    """``3`` -> step 3; ``1:3`` -> steps 1, 2 and 3. ValueError for anything else."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(
            f"--dump_tensors is {text}: give a step, or the first and the last of several, such as 1:3"
        )
    return range(first, last + 1)
