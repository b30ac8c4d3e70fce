"""Reads DistTensors and runs a program with all cures but one. ``cures.py FOLDER CURE``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle
import paddle.distributed as dist
import ranks
from paddle.distributed.auto_parallel.static import process_group
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.compat import auto_parallel


class Summed(paddle.nn.Layer):
    """x as a split, as the terms of a sum, and whole again."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        one = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.one = dist.shard_tensor(one, mesh, [dist.Replicate()])

    def forward(self, x):
        for placement in (dist.Shard(0), dist.Partial(), dist.Replicate()):
            x = dist.reshard(x, self.mesh, [placement])
        return x * self.one


def main(left_out: str) -> None:
    setattr(auto_parallel, left_out, lambda: None)
    auto_parallel.apply()
    dist.init_parallel_env()
    mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
    x = dist.shard_tensor(paddle.ones([4, 2]), mesh, [dist.Shard(0)])
    assert float(x.sum()) == 8.0
    layer = Summed(mesh)
    optimizer = dist.shard_optimizer(paddle.optimizer.SGD(0.0, parameters=layer.parameters()))
    specs = [[DistributedInputSpec.from_dtensor(x, "x")], [DistributedInputSpec.from_dtensor(x, "unused")]]
    program = dist.to_static(layer, None, lambda y, _unused: y.sum(), optimizer, input_spec=specs)
    program.train()
    result = float(program(x, x))
    rings = process_group._g_process_group_map
    assert all(dist.new_group([0, 1]).id not in rings for _ in range(8))
    ranks.write({"sum": result})


main(sys.argv[2])
