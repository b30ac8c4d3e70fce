"""A test case of an operator: its tensors, the call, and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class OpCase:
    """One set of arguments for one operator.

    ``operator``: the registered name. ``name``: what distinguishes the case, such as ``"rows 3, H 65"``.
    ``arrays(random)``: the tensors by name, from a numpy Generator. Floating arrays (float64) are rounded to
    the dtype under test; others (int64, bool) are passed unchanged.
    ``call(tensors)``: calls the public function with tensors by name; returns the floating outputs, a tuple.
    ``golden(arrays)``: the same outputs in float64, written in numpy from the formula.
    ``gradients``: names of the tensors whose gradients are compared. Their truth is the composed backend in
    float64 on the CPU place, which the tests compare with directional differences of ``golden``.
    ``keep_float32``: names of floating tensors that stay float32 in every dtype (such as a float32 weight).
    ``is_stable``: huge values give the definition's answer. Not so where exp turns the rounding of a large
    score into another answer, in every implementation.
    """

    operator: str
    name: str
    arrays: Callable[[np.random.Generator], dict[str, np.ndarray]]
    call: Callable[[Mapping], tuple]
    golden: Callable[[Arrays], tuple[np.ndarray, ...]]
    gradients: tuple[str, ...]
    dtypes: tuple[str, ...] = FLOATS
    keep_float32: tuple[str, ...] = ()
    is_stable: bool = True

    def __str__(self) -> str:
        return f"{self.operator}: {self.name}"
