"""Gradients of DistTensors cannot be accumulated on a custom device.

A second backward pass adds to the first one's gradients, and that sum is not implemented for DistTensors
on custom devices.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/fluid/eager/accumulation/accumulation_node.cc:125 `DistTensor doesn't support custom device.`
:error: SystemError: (Fatal) DistTensor doesn't support custom device. ...
:should print:
    [2.0, 2.0]
:change: Remove the check: the lines after it add the local dense tensors, which custom devices can.
:workaround: llm_npu/parallel/gradients.py
"""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
weight = dist.shard_tensor(paddle.create_parameter([2], "float32"), mesh, [dist.Replicate()])
for _ in range(2):
    weight.sum().backward()
print(weight.grad._local_value().tolist())
