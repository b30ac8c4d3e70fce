"""Sharding rules: which dimensions of an operator's tensors may be sharded over a mesh, as data.

A rule names the dimensions of every tensor, like an einsum. RMSNorm of x [B, S, H] by a weight [H]:

    ShardingRule(inputs={"x": ("b", "s", None), "weight": (None,)}, outputs=(("b", "s", None),))

- Dimensions with the same name are sharded together, in all tensors that have them. None is never sharded.
- An input without the name is broadcast, and its gradient is Partial.
- An output without the name is replicated. If the name is in ``summed``, the operator sums over that
  dimension, and the output is Partial.
- A dimension of size 1 is broadcast and has no name.

Shardy's ``sdy.sharding_rule`` and Paddle's SPMD rules for einsum have the same semantics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Dims = tuple[str | None, ...]


@dataclass(frozen=True)
class ShardingRule:
    """The sharding rule of an operator.

    Attributes:
        inputs: the dimensions of each input by name; earlier tensors take precedence.
        outputs: the dimensions of each result, or None for a result that is local to the process.
        summed: the names over which results are summed.
        yielding: tensors that are gathered if a mesh axis shards a different dimension in the other tensors,
            such as weights sharded by an optimizer.
    """

    inputs: Mapping[str, Dims]
    outputs: tuple[Dims | None, ...]
    summed: tuple[str, ...] = ()
    yielding: tuple[str, ...] = ()


class Placed(NamedTuple):
    """A tensor on a mesh: its global shape, and the dimension that each mesh axis shards.

    A size of -1 is unknown. An axis of None shards no dimension.
    """

    shape: tuple[int, ...]
    splits: tuple[int | None, ...]


@dataclass(frozen=True)
class Layout:
    """The dimension name that each mesh axis shards in a call of an operator.

    Attributes:
        axes: the name that each axis shards, or None.
        sizes: the number of processes along each axis.
        coordinate: this process's position along each axis.
    """

    axes: tuple[str | None, ...]
    sizes: tuple[int, ...]
    coordinate: tuple[int, ...] = field(default=())

    def splits(self, dims: Dims, shape: Sequence[int] | None = None) -> tuple[int | None, ...]:
        """For each axis, the dimension that it shards in a tensor with ``dims`` and ``shape``."""
        named = _named(dims, shape)
        return tuple(named.index(name) if name is not None and name in named else None for name in self.axes)

    def lacks(self, dims: Dims, shape: Sequence[int] | None = None) -> tuple[bool, ...]:
        """For each axis, whether it shards a name that ``dims`` lacks."""
        named = _named(dims, shape)
        return tuple(name is not None and name not in named for name in self.axes)

    def sums(self, dims: Dims, summed: Sequence[str]) -> tuple[bool, ...]:
        """For each axis, whether it shards a name over which a result with ``dims`` is summed."""
        return tuple(name in summed and name not in dims for name in self.axes)

    def count(self, name: str) -> int:
        """The number of shards of the dimension ``name``."""
        return math.prod(size for size, of in zip(self.sizes, self.axes, strict=True) if of == name)

    def part(self, name: str) -> int:
        """The index of this process's shard of the dimension ``name``, from 0."""
        number = 0
        for size, at, of in zip(self.sizes, self.coordinate, self.axes, strict=True):
            if of == name:
                number = number * size + at
        return number

    def own(self, name: str, size: int) -> slice:
        """This process's slice of ``size`` elements along the dimension ``name``."""
        length = size // self.count(name)
        return slice(self.part(name) * length, (self.part(name) + 1) * length)


def layout_of(
    operator: str,
    rule: ShardingRule,
    tensors: Mapping[str, Placed],
    sizes: Sequence[int],
    axis_names: Sequence[str],
    coordinate: Sequence[int] = (),
) -> Layout:
    """The name that each axis of a mesh with ``sizes`` shards, from the placements of ``tensors``.

    An axis shards the same name as in the first tensor that it shards, if the rule names this dimension and
    the dimension is evenly divisible in all tensors. Otherwise it shards nothing. Raises ValueError if it
    shards different names in different tensors.
    """
    chosen: list[str | None] = [None] * len(sizes)
    for axis in range(len(sizes)):
        first_tensor: dict[str, str] = {}  # name -> the first tensor in which the axis shards it
        for tensor, placed in tensors.items():
            dim = placed.splits[axis]
            name = None if dim is None else _named(rule.inputs[tensor], placed.shape)[dim]
            if name is not None and not (first_tensor and tensor in rule.yielding):
                first_tensor.setdefault(name, tensor)
        if len(first_tensor) > 1:
            (first, a), (second, b) = list(first_tensor.items())[:2]
            raise ValueError(
                f"{operator}: mesh axis {axis_names[axis]!r} shards {first} of {a}, but {second} of {b}; "
                "accepted: the same dimension in all tensors. Use paddle.distributed.reshard on one of them."
            )
        for name in first_tensor:
            parts = (
                math.prod(size for size, other in zip(sizes, chosen, strict=True) if other == name)
                * sizes[axis]
            )
            if all(_divides(parts, name, rule.inputs[tensor], placed) for tensor, placed in tensors.items()):
                chosen[axis] = name
    return Layout(tuple(chosen), tuple(sizes), tuple(coordinate))


def numbered(count: int) -> Dims:
    """Names for ``count`` interchangeable dimensions."""
    return tuple(f"dimension {number}" for number in range(count))


def _named(dims: Dims, shape: Sequence[int] | None) -> Dims:
    """``dims`` without the names of dimensions of size 1."""
    if shape is None:
        return dims
    return tuple(None if size == 1 else name for name, size in zip(dims, shape, strict=True))


def _divides(parts: int, name: str, dims: Dims, placed: Placed) -> bool:
    sizes = (size for of, size in zip(_named(dims, placed.shape), placed.shape, strict=True) if of == name)
    return all(size < 0 or size % parts == 0 for size in sizes)
