"""Sharding stage 2 trains weights with the gradients of one process if a weight beside them is not used.

``GroupShardedStage2`` reduces the gradients of a rank's weights as one buffer, once all have arrived. A
trainable weight without a gradient never arrives, so the buffer is not reduced, without an error. The
gradients are 1 on rank 0 and 0 on rank 1, so their mean is 0.5.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/fleet/meta_parallel/sharding/group_sharded_stage2.py:483 `grad_storage.all_checked_in`
:prints:
    all weights used: [-0.5, -0.5]
    one weight not used: [-0.5, 0.0]
:should print:
    all weights used: [-0.5, -0.5]
    one weight not used: [-0.5, -0.5]
:change: Before the optimizer's step, reduce the buffers that were not sent.
:workaround: llm_npu.patches.hybrid_parallel.fix_unused_weights_in_stage_2
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.sharding import group_sharded_parallel

dist.init_parallel_env()
paddle.set_device("npu")


class Weights(paddle.nn.Layer):
    def __init__(self, count):
        super().__init__()
        zeros = paddle.nn.initializer.Constant(0.0)
        self.weights = paddle.nn.ParameterList(
            [self.create_parameter([2], default_initializer=zeros) for _ in range(4)]
        )
        self.count = count

    def forward(self, x):
        return sum((weight * x).sum() for weight in self.parameters()[: self.count])


def trained(count):
    """The first element of the first two weights, of different ranks, after a step of SGD."""
    model = Weights(count)
    weights = list(model.parameters())
    optimizer = paddle.optimizer.SGD(1.0, weights)
    model, optimizer, _ = group_sharded_parallel(model, optimizer, "os_g")
    model(paddle.to_tensor(1.0 - dist.get_rank())).backward()
    optimizer.step()
    return [float(weight[0]) for weight in weights[:2]]


used, not_used = trained(4), trained(3)
print("all weights used:", used)
print("one weight not used:", not_used)
