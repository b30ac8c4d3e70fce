"""Compares two recordings of a step and finds differences that exceed rounding.

Errors are root mean squares over the elements of a tensor. A noise floor is a recording of the second run
with perturbed rounding (``compare_backends.other_roundings``). With noise floors, the tolerance for a tensor
of n elements is

    allowed = (2 + 80 / n^2) max over noise floors (error to the second) + rounding of the largest element

The term 80 / n^2 covers small n, where noise floors may be close to the second run by chance. For a single
number with independent normal errors, two noise floors are both closer than half the distance of a third in
13 % of cases, and closer than 1/82 of it in 0.01 %.

Without noise floors, ``roundings`` rounding units of the largest element are allowed. This bound is coarse,
because rounding errors grow with depth. The unit refers to the coarsest dtype so far: a float32 loss or
gradient may be computed from bfloat16 tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_fused.parity import ROUNDING

from .dumped import GRADIENT, OUTPUT, WEIGHT, as_float64, dtype_of

ROUNDINGS = 32
SMALL_TENSORS = 80  # the numerator for small n
SHOWN = 8
SENTENCES = {
    OUTPUT: "the output of {}",
    GRADIENT: "the gradient of the output of {}",
    WEIGHT: "the gradient of {}",
}


@dataclass(frozen=True)
class Difference:
    """A tensor of both recordings; ``distance`` is NaN if a value is NaN or the shapes differ."""

    name: str
    dtype: str
    distance: float
    allowed: float
    size: float
    same_bits: bool

    @property
    def exceeds(self) -> bool:
        """Whether the distance exceeds rounding."""
        return not (self.same_bits or self.distance <= self.allowed)

    @property
    def share(self) -> float:
        """The distance divided by the allowed distance; values above 1 count as different."""
        if self.same_bits:
            return 0.0
        return self.distance / self.allowed if self.allowed else float("inf")

    @property
    def place(self) -> str:
        kind, _, layer = self.name.partition("/")
        return SENTENCES[kind].format(layer) if kind in SENTENCES else self.name

    def __str__(self) -> str:
        return (
            f"{self.place} ({self.dtype}): error {self.distance:.2e} of {self.size:.2e} (rms), "
            f"allowed {self.allowed:.2e}"
        )


@dataclass(frozen=True)
class Comparison:
    """The tensors of both recordings in recording order; ``missing`` lists names that one of them lacks."""

    differences: Sequence[Difference]
    missing: Sequence[str]

    @property
    def beyond_rounding(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.exceeds]

    def lines(self, shown: int = SHOWN) -> list[str]:
        """The result as sentences, without a heading."""
        same = sum(difference.same_bits for difference in self.differences)
        lines = [f"{len(self.differences):,} tensors compared, {same:,} bit-identical"]
        if self.missing:
            names = ", ".join(self.missing[:3]) + (", ..." if len(self.missing) > 3 else "")
            lines.append(f"{len(self.missing):,} tensors are in only one recording: {names}")
        beyond = self.beyond_rounding
        if not beyond:
            worst = max(self.differences, key=lambda difference: difference.share, default=None)
            largest = (
                f"; the largest is {worst.place}, {worst.share:.0%} of the allowed error" if worst else ""
            )
            return [*lines, f"no difference exceeds rounding{largest}"]
        lines.append(f"first difference beyond rounding: {beyond[0]}")
        lines += [f"  then {difference}" for difference in beyond[1:shown]]
        if len(beyond) > shown:
            lines.append(f"  and {len(beyond) - shown:,} more")
        return lines


def compare(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    noise_floors: Sequence[Mapping[str, np.ndarray]] = (),
    roundings: float = ROUNDINGS,
) -> Comparison:
    """Compare ``first`` with ``second``, in the order of the second: outputs, then gradients in backward
    order."""
    differences, coarsest = [], 0.0
    for name in second:
        if name in first:
            pair = first[name], second[name]
            coarsest = max(coarsest, *(ROUNDING[dtype_of(array)] for array in pair))
            floors = [recording[name] for recording in noise_floors if name in recording]
            differences.append(_difference(name, *pair, floors, roundings * coarsest))
    missing = [name for name in (*first, *second) if (name in first) != (name in second)]
    return Comparison(differences, missing)


def _difference(name: str, first, second, noise_floors: Sequence[np.ndarray], relative: float) -> Difference:
    """``relative``: the allowed error without noise floors, relative to the largest element."""
    dtype = max(dtype_of(first), dtype_of(second), key=ROUNDING.__getitem__)  # the coarser dtype
    reference = as_float64(second)
    size, largest = _rms(reference), np.abs(reference).max(initial=0.0)
    if first.shape != second.shape:
        return Difference(name, dtype, float("nan"), 0.0, size, False)
    same = first.dtype == second.dtype and first.tobytes() == second.tobytes()
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which exceeds every bound
        distance = 0.0 if same else _rms(as_float64(first) - reference)
        errors = [_rms(as_float64(array) - reference) for array in noise_floors]
    factor = 2 + SMALL_TENSORS / max(reference.size, 1) ** 2
    allowed = factor * max(errors) + ROUNDING[dtype] * largest if errors else relative * largest
    return Difference(name, dtype, distance, float(allowed), size, same)


def _rms(values: np.ndarray) -> float:
    largest = float(np.abs(values).max(initial=0.0))
    if not 0 < largest < np.inf:  # also NaN
        return largest
    return largest * float(np.sqrt(np.mean(np.square(values / largest))))
