"""Finds where two recordings of a step differ by more than rounding.

Distances are root mean squares over the elements of a tensor. Given noise_floors, recordings of the second
way with perturbed rounding (``rounding.other_roundings``), a tensor of n elements may differ by

    allowed = (2 + 80 / n^2) max over noise_floors (distance from the second) + rounding of its largest
    element

The factor covers small n, where noise_floors may be close by chance: of two noise_floors for one number, with
independent normal errors, both are closer than half of a third in 13 % of all cases, and closer than an 82nd
in 0.01 %. Without noise_floors, ``roundings`` roundings of the largest element are allowed, a coarse bound
because rounding grows with depth. They are roundings of the coarsest dtype so far: a loss or a gradient in
float32 is computed from what came before it, which may be in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_fused.parity import ROUNDING

from .dumped import GRADIENT, OUTPUT, WEIGHT, as_float64, dtype_of

ROUNDINGS = 32
FEW = 80
SHOWN = 8
SENTENCES = {
    OUTPUT: "the output of {}",
    GRADIENT: "the gradient of the output of {}",
    WEIGHT: "the gradient of {}",
}


@dataclass(frozen=True)
class Difference:
    """One tensor of both recordings. ``distance`` is NaN if a value is, or if the shapes differ."""

    name: str
    dtype: str
    distance: float
    allowed: float
    size: float
    same_bits: bool

    @property
    def parts(self) -> bool:
        """Whether rounding does not explain the distance."""
        return not (self.same_bits or self.distance <= self.allowed)

    @property
    def share(self) -> float:
        """The distance relative to the allowed one; more than 1 is a difference."""
        if self.same_bits:
            return 0.0
        return self.distance / self.allowed if self.allowed else float("inf")

    @property
    def place(self) -> str:
        kind, _, layer = self.name.partition("/")
        return SENTENCES[kind].format(layer) if kind in SENTENCES else self.name

    def __str__(self) -> str:
        return (
            f"{self.place} ({self.dtype}): distance {self.distance:.2e} of {self.size:.2e} (rms), "
            f"rounding explains {self.allowed:.2e}"
        )


@dataclass(frozen=True)
class Comparison:
    """The tensors of both recordings, in recording order; ``alone``: names that one of them lacks."""

    differences: Sequence[Difference]
    alone: Sequence[str]

    @property
    def parted(self) -> list[Difference]:
        return [each for each in self.differences if each.parts]

    def lines(self, shown: int = SHOWN) -> list[str]:
        """The findings as sentences, without a heading."""
        count, same = len(self.differences), sum(each.same_bits for each in self.differences)
        lines = [f"{count:,} tensors compared, {same:,} of them are the same bit for bit"]
        if self.alone:
            first = ", ".join(self.alone[:3]) + (", ..." if len(self.alone) > 3 else "")
            lines.append(f"{len(self.alone):,} are in only one of the two: {first}")
        if not self.parted:
            worst = max(self.differences, key=lambda each: each.share, default=None)
            near = f"; the furthest is {worst.place}, {worst.share:.0%} of that" if worst else ""
            return [*lines, f"nowhere do they part by more than rounding explains{near}"]
        lines.append(f"they part first at {self.parted[0]}")
        lines += [f"  then {each}" for each in self.parted[1:shown]]
        if len(self.parted) > shown:
            lines.append(f"  and {len(self.parted) - shown:,} more")
        return lines


def compare(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    noise_floors: Sequence[Mapping[str, np.ndarray]] = (),
    roundings: float = ROUNDINGS,
) -> Comparison:
    """Compares ``first`` with ``second``, in the order of the second: outputs, then gradients in backward
    order."""
    differences, coarsest = [], 0.0
    for name in second:
        if name in first:
            one, other = first[name], second[name]
            coarsest = max(coarsest, *(ROUNDING[dtype_of(each)] for each in (one, other)))
            others = [each[name] for each in noise_floors if name in each]
            differences.append(_difference(name, one, other, others, roundings * coarsest))
    alone = [name for name in (*first, *second) if (name in first) != (name in second)]
    return Comparison(differences, alone)


def _difference(name: str, first, second, noise_floors: Sequence[np.ndarray], relative: float) -> Difference:
    """``relative``: what is allowed without noise_floors, of the largest element."""
    dtype = max(dtype_of(first), dtype_of(second), key=ROUNDING.__getitem__)  # the coarser dtype
    reference = as_float64(second)
    size, largest = _rms(reference), np.abs(reference).max(initial=0.0)
    if first.shape != second.shape:
        return Difference(name, dtype, float("nan"), 0.0, size, False)
    same = first.dtype == second.dtype and first.tobytes() == second.tobytes()
    with np.errstate(invalid="ignore"):  # infinity minus infinity: NaN, which exceeds every bound
        distance = 0.0 if same else _rms(as_float64(first) - reference)
        others = [_rms(as_float64(each) - reference) for each in noise_floors]
    luck = 2 + FEW / max(reference.size, 1) ** 2
    allowed = luck * max(others) + ROUNDING[dtype] * largest if others else relative * largest
    return Difference(name, dtype, distance, float(allowed), size, same)


def _rms(values: np.ndarray) -> float:
    largest = float(np.abs(values).max(initial=0.0))
    if not 0 < largest < np.inf:  # also NaN
        return largest
    return largest * float(np.sqrt(np.mean(np.square(values / largest))))
