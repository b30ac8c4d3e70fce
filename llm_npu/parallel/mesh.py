"""Meshes of processes: ``dp`` parts of the batch x ``tp`` parts of each layer x ``pp`` stages of layers."""

from __future__ import annotations

import dataclasses
from dataclasses import InitVar, dataclass

import numpy as np
import paddle.distributed as dist

from llm_npu.core.errors import UserError

TENSOR_AXIS = "mp"  # tp: Paddle's sharded optimizers look for the axis of tensor parallelism by this name
AXES = ("dp", TENSOR_AXIS)
STAGES_FIRST = ("pp", *AXES)


@dataclass(frozen=True)
class Degrees:
    """How many parts each axis has; process ``(p * dp + d) * tp + t`` is at (d, t) of the stage p.

    ``mp`` is another name of ``tp``.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    mp: InitVar[int | None] = None

    def __post_init__(self, mp):
        if mp is not None:
            if self.tp not in (1, mp):
                raise UserError(f"tp is {self.tp} and mp, which is the same, {mp}; give one of them.")
            object.__setattr__(self, "tp", mp)
        for axis, degree in dataclasses.asdict(self).items():
            if not isinstance(degree, int) or degree < 1:
                raise UserError(f"the degree of {axis} is {degree!r}; accepted: a whole number of 1 or more.")

    def __str__(self) -> str:
        return f"dp={self.dp} x tp={self.tp}" + (f" x pp={self.pp}" if self.pp > 1 else "")

    @property
    def processes(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def stage(self) -> int:
        """The stage that this process belongs to, from 0."""
        return dist.get_rank() // (self.dp * self.tp)

    @property
    def row(self) -> int:
        """The part of the batch that is this process's, from 0."""
        return dist.get_rank() // self.tp % self.dp


def make(degrees: Degrees) -> list[dist.ProcessMesh]:
    """The mesh (dp, tp) of each stage; that of all processes becomes Paddle's global mesh.

    Both axes are there even if they have one part. ValueError if the degrees do not multiply to the number of
    processes.
    """
    processes, wanted = dist.get_world_size(), degrees.processes
    if wanted != processes:
        raise UserError(
            f"the mesh {degrees} has {wanted} processes, but {processes} are running; start {wanted} "
            f"(--nproc {wanted}) or choose other degrees."
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
    """This process and those at its place in the other stages; each process of the run must call it."""
    places = np.arange(degrees.processes).reshape([degrees.pp, -1]).T
    groups = [dist.new_group(ranks.tolist()) for ranks in places]  # by all, in the same order
    return groups[dist.get_rank() % len(groups)]
