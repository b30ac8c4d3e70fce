"""Runs an operator on the local shards of distributed tensors, according to its sharding rule.

Dygraph and captured programs convert between distributed tensors and local shards in the same way as
``paddle.distributed.LocalLayer``, so gradients flow through the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.distributed as dist

from .. import dispatch
from ..captured import is_parameter, replicate_parameter
from ..devices import is_captured
from .rule import Dims, Layout, Placed, ShardingRule, layout_of


def is_split(x) -> bool:
    """Whether ``x`` is a distributed tensor, or a value of a program that will become one."""
    if isinstance(x, paddle.Tensor):
        return x.is_dist()
    return isinstance(x, paddle.pir.Value) and x.is_dist_dense_tensor_type()


def mesh_of(x) -> dist.ProcessMesh:
    """The mesh of a distributed tensor."""
    return x.dist_attr().process_mesh if is_captured(x) else x.process_mesh


def placements_of(x) -> list:
    """The placements of a distributed tensor."""
    return x.dist_attr().placements if is_captured(x) else x.placements


@dataclass(frozen=True)
class Sharding:
    """How an operator computes on distributed tensors.

    Attributes:
        names: names of the operator's arguments, in order.
        rule: ``rule(*arguments)`` returns the sharding rule.
        localise: ``localise(layout, by_name, part)`` returns further arguments, by name, that differ for the
            local shards. ``by_name`` has the arguments, with the tensors of the rule already replaced by
            local shards. ``part(name, x, dims)`` returns the shard of another tensor. None: nothing else
            differs.
        further: returns the tensors nested in the arguments.
    """

    names: tuple[str, ...]
    rule: Callable[..., ShardingRule]
    localise: Callable[[Layout, dict, Callable], dict] | None = None
    further: Callable[..., Sequence] | None = None

    def applies(self, arguments: tuple) -> bool:
        return any(map(is_split, self._every(arguments)))

    def _every(self, arguments: tuple) -> tuple:
        return (*arguments, *(() if self.further is None else self.further(*arguments)))

    def run(self, name: str, operator: Callable, arguments: tuple):
        """Runs ``operator`` (public name ``name``) on the local shards of ``arguments``."""
        by_name = dict(zip(self.names, arguments, strict=True))
        rule = self.rule(*arguments)
        mesh = _mesh(name, [x for x in self._every(arguments) if is_split(x)])
        tensors = {of: by_name[of] for of in rule.inputs if by_name[of] is not None}
        placed = {of: _placed(x, mesh) for of, x in tensors.items()}
        layout = layout_of(name, rule, placed, mesh.shape, mesh.dim_names, _coordinate(mesh))
        moved: list[str] = []

        def part(of: str, x, dims: Dims):
            return _part(of, x, mesh, layout, dims, moved)

        by_name |= {of: part(of, x, rule.inputs[of]) for of, x in tensors.items()}
        if self.localise is not None:
            by_name |= self.localise(layout, by_name, part)
        with dispatch.resharded(tuple(moved)):
            outputs = operator(*by_name.values())
        several = isinstance(outputs, (tuple, list))
        sizes = _sizes(rule, placed)
        wholes = [
            _whole(name, output, mesh, layout, dims, rule.summed, sizes)
            if output is not None and dims is not None
            else output
            for output, dims in zip(outputs if several else (outputs,), rule.outputs, strict=True)
        ]
        return tuple(wholes) if several else wholes[0]


def _mesh(name: str, tensors: Sequence) -> dist.ProcessMesh:
    """The mesh of the tensors. Raises ValueError for several meshes or if this process is not on it."""
    mesh = mesh_of(tensors[0])
    other = next((mesh_of(x) for x in tensors if mesh_of(x) != mesh), None)
    if other is not None:
        raise ValueError(
            f"{name}: tensors are on different meshes, {_mesh_text(mesh)} and {_mesh_text(other)}; accepted: "
            "the same mesh for all. Reshard them with paddle.distributed.reshard."
        )
    if paddle.in_dynamic_mode() and dist.get_rank() not in mesh.process_ids:
        raise ValueError(
            f"{name}: process {dist.get_rank()} is not on the tensors' mesh {_mesh_text(mesh)}; accepted: "
            "calls from the processes of the mesh. Skip the call on other processes."
        )
    return mesh


def _mesh_text(mesh: dist.ProcessMesh) -> str:
    return f"{mesh.shape} of processes {mesh.process_ids}"


def _sent(of: str, mesh: dist.ProcessMesh, before: Sequence, after: Sequence) -> Iterator[str]:
    """The communication that reshards the tensor ``of`` from the placements ``before`` to ``after``."""
    for axis, old, new in zip(mesh.dim_names, before, after, strict=True):
        if old.is_replicated() or old == new:  # slicing a replicated tensor needs no communication
            continue
        if old.is_partial():
            yield f"{of} was reduced over {axis}"
        else:
            yield f"{of} (dimension {old.get_dim()} sharded over {axis}) was gathered"


def _placed(x, mesh: dist.ProcessMesh) -> Placed:
    if not is_split(x):
        return Placed(tuple(x.shape), (None,) * len(mesh.shape))
    splits = (placement.get_dim() if placement.is_shard() else None for placement in placements_of(x))
    return Placed(tuple(x.shape), tuple(splits))


def _part(of: str, x, mesh, layout: Layout, dims: Dims, moved: list[str]):
    """This process's shard of ``x``. Its gradient is a shard or a partial sum of the gradient of ``x``.

    Appends the required communication to ``moved``, under the tensor name ``of``.
    """
    shape = tuple(x.shape)
    wanted = _placements(layout.splits(dims, shape))
    of_gradient = [
        dist.Partial() if summed else placement
        for summed, placement in zip(layout.lacks(dims, shape), wanted, strict=True)
    ]
    if not is_split(x):
        if x.stop_gradient and all(placement.is_replicated() for placement in wanted):
            return x
        x = _everywhere(x, mesh)
    before = placements_of(x)
    if before != wanted:
        moved += _sent(of, mesh, before, wanted)
        x = dist.reshard(x, mesh, wanted)
    return dist.auto_parallel.api.dtensor_to_local(x, mesh, of_gradient)


def _everywhere(x, mesh: dist.ProcessMesh):
    """A local tensor as a replicated distributed tensor.

    A parameter of a program is converted in place, as by Paddle's own operators. Otherwise, Paddle 3.3 cannot
    place the optimizer's operator.
    """
    if is_captured(x) and is_parameter(x):
        replicate_parameter(x, mesh)
        return x
    return dist.auto_parallel.api.dtensor_from_local(x, mesh, [dist.Replicate()] * len(mesh.shape))


def _sizes(rule: ShardingRule, placed: Mapping[str, Placed]) -> dict[str, set[int]]:
    """The sizes of each dimension name. Query and key heads share a name but have two sizes."""
    sizes: dict[str, set[int]] = {}
    for of, tensor in placed.items():
        for name, size in zip(rule.inputs[of], tensor.shape, strict=True):
            if name is not None:
                sizes.setdefault(name, set()).add(size)
    return sizes


def _whole(name: str, part, mesh, layout: Layout, dims: Dims, summed, sizes: Mapping[str, set[int]]):
    """The distributed tensor, from the shard or partial sum that each process has computed."""
    fits = len(dims) == len(part.shape) and all(
        of not in sizes or size < 0 or {-1, size * layout.count(of)} & sizes[of]
        for of, size in zip(dims, part.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name}: the local result has shape {list(part.shape)}, which is not a shard of "
            f"{_dims_text(dims)}; accepted: the shape in the operator's sharding rule. Correct the rule."
        )
    sums = layout.sums(dims, summed)
    if any(sums):
        return _sum_of_terms(part, mesh, sums, layout.splits(dims))
    return dist.auto_parallel.api.dtensor_from_local(part, mesh, _placements(layout.splits(dims)))


def _sum_of_terms(term, mesh, sums: tuple[bool, ...], splits: tuple[int | None, ...]):
    """The sum of the processes' terms along the axes ``sums``.

    The result is not declared Partial, because its gradient would then be Partial as well, and every process
    needs the full gradient. Instead, the terms are sharded along a new dimension that Paddle's sum reduces.
    """
    dims = tuple(0 if of else None if dim is None else dim + 1 for of, dim in zip(sums, splits, strict=True))
    terms = dist.auto_parallel.api.dtensor_from_local(term.unsqueeze(0), mesh, _placements(dims))
    return terms.sum(0)


def _placements(splits: tuple[int | None, ...]) -> list:
    return [dist.Replicate() if dim is None else dist.Shard(dim) for dim in splits]


def _dims_text(dims: Dims) -> str:
    return f"[{', '.join(name or '_' for name in dims)}]"


def _coordinate(mesh: dist.ProcessMesh) -> tuple[int, ...]:
    """The coordinate of this process on the mesh, or the first one on another pipeline stage."""
    rank = dist.get_rank()
    number = mesh.process_ids.index(rank) if rank in mesh.process_ids else 0
    return tuple(map(int, np.unravel_index(number, mesh.shape)))
