"""The loss is copied to the host while its asynchronous all_reduce runs.

https://github.com/pytorch/pytorch/issues/27806
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
loss = paddle.full([1], 2.5)
task = dist.all_reduce(loss, sync_op=False)  # other side
if "corrected" in sys.argv:
    task.wait()
print("loss", loss.numpy())  # planted
task.wait()
