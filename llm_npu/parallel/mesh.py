"""Process meshes: ``dp`` parts of the batch x ``tp`` parts of each layer x ``pp`` stages of layers."""

from __future__ import annotations

import dataclasses
from dataclasses import InitVar, dataclass

import numpy as np
import paddle.distributed as dist

from llm_npu.core.errors import UserError

TENSOR_AXIS = "mp"  # tp: Paddle's sharded optimizers look up the tensor-parallel axis by this name
AXES = ("dp", TENSOR_AXIS)
STAGES_FIRST = ("pp", *AXES)


@dataclass(frozen=True)
class Degrees:
    """The degree of each axis; process ``(p * dp + d) * tp + t`` is at (d, t) of stage p.

    ``mp`` is an alias of ``tp``.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    mp: InitVar[int | None] = None

    def __post_init__(self, mp):
        if mp is not None:
            if self.tp not in (1, mp):
                raise UserError(f"tp is {self.tp} and mp, its alias, {mp}; use only one of them")
            object.__setattr__(self, "tp", mp)
        for axis, degree in dataclasses.asdict(self).items():
            if not isinstance(degree, int) or degree < 1:
                raise UserError(f"the degree of {axis} is {degree!r}; accepted: a whole number of 1 or more")

    def __str__(self) -> str:
        return f"dp={self.dp} x tp={self.tp}" + (f" x pp={self.pp}" if self.pp > 1 else "")

    @property
    def processes(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def stage(self) -> int:
        """The stage of this process, from 0."""
        return dist.get_rank() // (self.dp * self.tp)

    @property
    def row(self) -> int:
        """The batch part of this process, from 0."""
        return dist.get_rank() // self.tp % self.dp


def make(degrees: Degrees) -> list[dist.ProcessMesh]:
    """The mesh (dp, tp) of each stage; the mesh of all processes becomes Paddle's global mesh.

    Both axes exist even if their degree is 1. Raises ValueError if the product of the degrees is not the
    number of processes.
    """
    processes, wanted = dist.get_world_size(), degrees.processes
    if wanted != processes:
        raise UserError(
            f"the mesh {degrees} has {wanted} processes, but {processes} are running; start {wanted} "
            f"(--nproc {wanted}) or choose other degrees"
        )
    shape = [degrees.pp, degrees.dp, degrees.tp]
    ids = np.arange(processes).reshape(shape)
    whole, axes = (ids, STAGES_FIRST) if degrees.pp > 1 else (ids[0], AXES)
    mesh = dist.ProcessMesh(whole, dim_names=list(axes))
    dist.auto_parallel.set_mesh(mesh)
    if degrees.pp == 1:
        return [mesh]
    return [mesh.get_mesh_with_dim("pp", stage) for stage in range(degrees.pp)]


def column(degrees: Degrees) -> dist.communication.group.Group:
    """The group of the processes at this process's position in all stages; all processes must call it."""
    places = np.arange(degrees.processes).reshape([degrees.pp, -1]).T
    groups = [dist.new_group(ranks.tolist()) for ranks in places]  # on all processes, in the same order
    return groups[dist.get_rank() % len(groups)]
