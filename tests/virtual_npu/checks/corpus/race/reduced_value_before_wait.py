"""The result of an asynchronous all_reduce is used before wait().

https://github.com/pytorch/pytorch/issues/27806
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
gradient = paddle.ones([1024])
task = dist.all_reduce(gradient, sync_op=False)  # other side
if "corrected" in sys.argv:
    task.wait()
update = gradient * 0.1  # planted
task.wait()
