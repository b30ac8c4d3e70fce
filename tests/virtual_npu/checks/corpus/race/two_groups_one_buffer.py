"""Two groups reduce one buffer at the same time: the second all_reduce does not wait for the first.

Each group has a communication stream of its own.
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
data_parallel, context_parallel = dist.new_group([0, 1]), dist.new_group([0, 1])
norm = paddle.ones([16])
first = dist.all_reduce(norm, group=data_parallel, sync_op=False)  # other side
if "corrected" in sys.argv:
    first.wait()
second = dist.all_reduce(norm, group=context_parallel, sync_op=False)  # planted
first.wait()
second.wait()
