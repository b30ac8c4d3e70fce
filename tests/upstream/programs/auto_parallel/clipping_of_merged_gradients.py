"""A program with gradient_merge or pipeline clips the sum of its gradients, and averages afterwards.

Gradients of micro batches are summed, the sum is clipped by its norm, and the result divided by their
number: steps are shorter by that number than those of the same batch in one piece.
``_append_scale_op_after_comm`` puts the division in front of the optimizer's operators, behind the
clipping; ``_append_scale_op_before_comm`` is not reached.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/distributed/passes/auto_parallel_gradient_merge.py:275 `_append_scale_op_after_comm(block`
:prints:
    1 batch: 0.0
    4 micro batches: 0.75
:should print:
    1 batch: 0.0
    4 micro batches: 0.0
:change:
    Divide each sum right before its first reader among the operators of role Optimize, so that the
    clipping and its norm see averages.
:workaround: llm_npu.patches.auto_parallel.fix_clipping_of_merged_gradients
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

mesh = dist.ProcessMesh([0], dim_names=["x"])


class Scaled(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        weight = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.weight = dist.shard_tensor(weight, mesh, [dist.Replicate()])

    def forward(self, x):
        return (x * self.weight).mean()


def weight_after_a_step(pieces):
    layer = Scaled()
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = dist.shard_optimizer(paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=clip))
    x = dist.shard_tensor(paddle.full([4, 1], 9.0), mesh, [dist.Replicate()])
    specs = [[DistributedInputSpec.from_dtensor(x, name)] for name in ("x", "label")]
    merge = {"enable": pieces > 1, "k_steps": pieces, "avg": True}
    strategy = dist.Strategy({"gradient_merge": merge})
    program = dist.to_static(layer, None, lambda y, label: y, optimizer, strategy, input_spec=specs)
    program.train()
    program(x, x)
    return float(program.state_dict("param")["weight"]._local_value())


whole, merged = weight_after_a_step(1), weight_after_a_step(4)
print("1 batch:", whole)
print("4 micro batches:", merged)
