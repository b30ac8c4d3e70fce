"""A test case of an operator: its tensors, its call and its reference results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class OpCase:
    """One set of arguments for one operator.

    Attributes:
        operator: the registered name.
        name: identifies the case, such as ``"rows 3, H 65"``.
        arrays: ``arrays(random)`` returns the tensors by name, from a numpy Generator. Floating-point arrays
            (float64) are rounded to the dtype under test; others (int64, bool) are passed unchanged.
        call: ``call(tensors)`` calls the public function and returns a tuple of its floating-point outputs.
        golden: ``golden(arrays)`` returns the same outputs in float64, computed by the formula in numpy.
        gradients: names of the tensors whose gradients are compared. The reference is the composed backend in
            float64 on the CPU place, which the tests check against directional differences of ``golden``.
        keep_float32: names of floating-point tensors that stay float32 in every dtype (a float32 weight).
        is_stable: whether all implementations agree on huge values. They do not if exp amplifies the rounding
            of a large score.
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
