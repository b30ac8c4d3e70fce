"""Meshes of processes: ``dp`` parts of the batch x ``mp`` parts of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle.distributed as dist

AXES = ("dp", "mp")


@dataclass(frozen=True)
class Degrees:
    """How many parts each axis has; process ``d * mp + m`` is at (d, m)."""

    dp: int = 1
    mp: int = 1

    def __post_init__(self):
        for axis in AXES:
            degree = getattr(self, axis)
            if not isinstance(degree, int) or degree < 1:
                raise ValueError(
                    f"the degree of {axis} is {degree!r}; accepted: a whole number of 1 or more."
                )

    def __str__(self) -> str:
        return f"dp={self.dp} x mp={self.mp}"


def make(degrees: Degrees) -> dist.ProcessMesh:
    """The mesh of all processes of this run, known to Paddle as its global mesh.

    Both axes are there even if they have one part. ValueError if the degrees do not multiply to the number of
    processes.
    """
    processes, wanted = dist.get_world_size(), degrees.dp * degrees.mp
    if wanted != processes:
        raise ValueError(
            f"the mesh {degrees} has {wanted} processes, but {processes} are running; start {wanted} "
            f"(--nproc {wanted}) or choose other degrees."
        )
    mesh = dist.ProcessMesh(np.arange(processes).reshape([degrees.dp, degrees.mp]), dim_names=list(AXES))
    dist.auto_parallel.set_mesh(mesh)
    return mesh
