"""One row of the table: a case of an operator, how its tensors are split, how its results come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """Placements on a mesh of one axis: ``S0`` is split along dimension 0, ``R`` whole on both processes, and
    ``P`` a term of a sum on each of them.

    ``operator``, ``case``: of an OpCase in paddle_fused/ops/<package>/cases.py.
    ``split``: the dimension along which a tensor is split, by the tensor's name; the others are whole.
    ``placements``: of every output (``output 0``) and gradient (``gradient of x``).
    ``summed``: results that come out of a sum over the processes although they are not ``P``; like those that
    are, they may differ from one process's result in rounding. All others must be equal bit for bit.
    ``gathered``: what is split cannot be computed on part by part, so that it is put together first.
    """

    operator: str
    case: str
    split: Mapping[str, int]
    placements: Mapping[str, str]
    summed: tuple[str, ...] = field(default=())
    gathered: bool = False

    def __str__(self) -> str:
        split = ", ".join(f"{name} along {dim}" for name, dim in self.split.items())
        return f"{self.operator}: {self.case}: {split}"

    def is_exact(self, name: str) -> bool:
        return self.placements[name] != "P" and name not in self.summed
