"""The forward pass uses parameters whose asynchronous all_gather has not ended.

https://github.com/NVIDIA/Megatron-LM/issues/950
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
shard = paddle.full([32, 16], 0.5)
weight = paddle.zeros([64, 16])
task = dist.stream.all_gather(weight, shard, sync_op=False)  # other side
if "corrected" in sys.argv:
    task.wait()
logits = paddle.matmul(paddle.ones([8, 64]), weight)  # planted
task.wait()
