"""The next micro-batch accumulates into a gradient bucket while its all_reduce runs.

https://github.com/facebookresearch/fairscale/issues/780
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
bucket = paddle.zeros([256])
bucket.add_(paddle.ones([256]))
task = dist.all_reduce(bucket, sync_op=False)  # other side
if "corrected" in sys.argv:
    task.wait()
bucket.add_(paddle.ones([256]))  # planted
task.wait()
