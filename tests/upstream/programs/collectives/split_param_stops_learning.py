"""Sharding stage 1 with split_param stops learning after its first step, without an error.

Gradients of the parameters' own dtype are views of a buffer, which is reduced between the processes.
``clear_grad`` marks them as empty; the next backward pass gives each parameter a new gradient of its
own, and the buffer keeps its zeros. Main gradients (``amp_master_grad``) are not concerned.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/fleet/meta_optimizers/dygraph_optimizer/dygraph_sharding_optimizer.py:988 `clear_grad`
:prints:
    step 1: 0.0
    step 2: 0.0
:should print:
    step 1: 0.0
    step 2: -1.0
:change:
    Zero the buffers, ``comm_buffer.grad_storage.zero_()``, and with them their views, wherever there is
    a buffer; ``tensor_fusion`` does so already.
:workaround: llm_npu.patches.hybrid_parallel.fix_split_param_gradients
"""

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "sharding_degree": dist.get_world_size()}
strategy.hybrid_configs["sharding_configs"].split_param = True
fleet.init(is_collective=True, strategy=strategy)
layer = paddle.nn.Linear(2, 2, weight_attr=paddle.nn.initializer.Constant(1.0), bias_attr=False)
optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters())
model = fleet.distributed_model(layer)
optimizer = fleet.distributed_optimizer(optimizer)
for step in (1, 2):
    model(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
    print(f"step {step}: {float(layer.weight.max())}")
