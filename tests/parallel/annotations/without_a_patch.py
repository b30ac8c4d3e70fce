"""Reads DistTensors and runs a program with all patches but one: ``without_a_patch.py FOLDER PATCH``."""

from __future__ import annotations

import sys

import paddle
import paddle.distributed as dist
import ranks
from paddle.distributed.auto_parallel.static import process_group
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.patches import auto_parallel


class Summed(paddle.nn.Layer):
    """x as a split, as the terms of a sum, and whole again."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        parameter = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.one = dist.shard_tensor(parameter, mesh, [dist.Replicate()])

    def forward(self, x):
        for placement in (dist.Shard(0), dist.Partial(), dist.Replicate()):
            x = dist.reshard(x, self.mesh, [placement])
        return x * self.one


class Staged(paddle.nn.Layer):
    """The mean of a x b, where a is in the first process and b in the second one."""

    def __init__(self, meshes):
        super().__init__()
        self.meshes = meshes
        for name, mesh in zip("ab", meshes, strict=True):
            parameter = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(1.0))
            setattr(self, name, dist.shard_tensor(parameter, mesh, [dist.Replicate()]))

    def forward(self, x, _labels):
        return (dist.reshard(x * self.a, self.meshes[1], [dist.Replicate()]) * self.b).mean()


def pipeline() -> float:
    """The parameter of this process after a step with two micro batches."""
    meshes = [dist.ProcessMesh([rank], dim_names=["x"]) for rank in (0, 1)]
    layer = Staged(meshes)
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=clip)
    tensors = [
        dist.auto_parallel.api.dtensor_from_local(paddle.ones([4, 2]), mesh, [dist.Replicate()])
        for mesh in meshes
    ]
    specs = [
        DistributedInputSpec([2, 2], name=name, mesh=mesh, placements=[dist.Replicate()])
        for name, mesh in (("x", meshes[0]), ("labels", meshes[1]), ("loss_labels", meshes[1]))
    ]
    strategy = dist.Strategy({"pipeline": {"enable": True, "accumulate_steps": 2, "pp_degree": 2}})
    program = dist.to_static(
        layer,
        None,
        lambda loss, _labels: loss,
        dist.shard_optimizer(optimizer),
        strategy,
        input_spec=[specs[:2], specs[2:]],
    )
    program.train()
    program(*tensors, tensors[1])
    own = "ab"[dist.get_rank()]
    return float(program.state_dict("param")[own]._local_value())


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
    parameter = pipeline()
    # Both gradients are 1 in both micro batches: their norm is the root of 2.
    assert abs(parameter - (1 - 0.5**0.5)) < 1e-6, parameter
    ranks.write({"sum": result})


main(sys.argv[2])
