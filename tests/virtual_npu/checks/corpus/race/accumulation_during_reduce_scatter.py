"""The second micro-batch adds to the full gradient buffer while reduce_scatter of the first one reads it.

https://github.com/InfiniTensor/InfiniTrain/pull/213
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
full_gradient = paddle.ones([512])
shard = paddle.zeros([256])
task = dist.reduce_scatter(shard, full_gradient, sync_op=False)  # other side
if "corrected" in sys.argv:
    task.wait()
full_gradient.add_(paddle.ones([512]))  # planted
task.wait()
