"""The sender reuses its buffer for the next micro-batch while isend reads it.

https://github.com/NVIDIA/TensorRT-LLM/pull/3688
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
buffer = paddle.ones([4, 32])
if dist.get_rank() == 0:
    task = dist.isend(buffer, dst=1)  # other side
    if "corrected" in sys.argv:
        task.wait()
    buffer.fill_(2.0)  # planted
    task.wait()
else:
    dist.irecv(buffer, src=0).wait()
