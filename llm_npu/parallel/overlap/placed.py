"""Matmuls of distributed tensors; the placements determine the operator.

For auto-parallel in dygraph. Along the mesh axis that splits the weight's rows, x is split by its last
dimension, and the product is a partial sum. Paddle keeps the partial sum and reduces it later; here the
reduction overlaps with the matmul:

    wanted along that axis    operator
    whole                     matmul_all_reduce
    split along a dimension   matmul_reduce_scatter

A column-split weight needs no communication in its matmul, and the gradients of all layers with the same
input are reduced together, so overlap has no benefit.
"""

from __future__ import annotations

import functools

import numpy as np
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local, dtensor_to_local

from llm_npu.core.errors import UserError

from .operators import matmul_all_reduce, matmul_reduce_scatter
from .planner import AUTO, Planner
from .product import Setting


def splits_rows(weight) -> int | None:
    """The mesh axis that splits the rows of a distributed ``weight`` into more than one part, or None."""
    if not weight.is_dist():
        return None
    for axis, placement in enumerate(weight.placements):
        if placement.is_shard() and placement.get_dim() == 0 and weight.process_mesh.shape[axis] > 1:
            return axis
    return None


def matmul(x, weight, split: int | None = None, overlap: str | Setting | Planner = AUTO):
    """x weight, all-reduced over the mesh axis that splits the weight's rows, during the computation.

    Args:
        x: distributed, split by its last dimension along that axis, with any placement along other axes.
        weight: distributed, [depth, columns].
        split: the dimension along which that axis splits the result; None for a whole result.
        overlap: as for `matmul_all_reduce`.

    Raises:
        ValueError: for other placements.
    """
    axis = splits_rows(weight)
    last = x.ndim - 1
    if axis is None or not x.is_dist() or not _is_split(x.placements[axis], last):
        of_x, of_weight = (t.placements if t.is_dist() else "not a distributed tensor" for t in (x, weight))
        raise UserError(
            f"overlap: x has placements {of_x} and weight {of_weight}; accepted: a mesh axis that splits x "
            "by its last dimension and weight by its rows. Reshard x."
        )
    mesh = weight.process_mesh
    group = _group(mesh, axis)
    # If another axis splits x (the batch), each process has a partial sum of the weight gradient.
    terms = list(weight.placements)
    for other, placement in enumerate(weight.placements):
        if placement.is_replicated() and x.placements[other].is_shard() and other != axis:
            terms[other] = dist.Partial()
    left = dtensor_to_local(x, mesh, x.placements)
    right = dtensor_to_local(weight, mesh, terms)
    wanted = list(x.placements)
    if split is None:
        wanted[axis] = dist.Replicate()
        result = matmul_all_reduce(left, right, group, overlap)
    else:
        wanted[axis] = dist.Shard(split)
        order = [split, *(dim for dim in range(last) if dim != split), last]
        back = sorted(range(last + 1), key=order.__getitem__)
        result = matmul_reduce_scatter(left.transpose(order), right, group, overlap).transpose(back)
    return dtensor_from_local(result, mesh, wanted)


def _group(mesh, axis: int):
    """The group of this process along one axis of ``mesh``, which may be a submesh of the global mesh."""
    name, whole = mesh.dim_names[axis], dist.auto_parallel.get_mesh()
    if whole is None or name not in whole.dim_names or not set(mesh.process_ids) <= set(whole.process_ids):
        whole = mesh
    return _group_along(tuple(whole.process_ids), tuple(whole.shape), whole.dim_names.index(name))


@functools.cache
def _group_along(processes: tuple[int, ...], shape: tuple[int, ...], axis: int):
    # Paddle numbers groups per process in creation order, and groups communicate by number, so all processes
    # must create all groups. ProcessMesh.get_group creates only the caller's group, which mixes up mesh rows.
    lines = np.moveaxis(np.reshape(processes, shape), axis, -1).reshape([-1, shape[axis]])
    groups = [dist.new_group(line) for line in lines.tolist()]
    return next(group for group in groups if group.is_member())


def _is_split(placement, dim: int) -> bool:
    return placement.is_shard() and placement.get_dim() == dim


def forward(self, x):
    """Replaces the forward of a paddle.nn.Linear with a weight split by rows."""
    options = self.overlap_options
    result = matmul(x, self.weight, options.split, options.overlap)
    return result if self.bias is None else result + self.bias
