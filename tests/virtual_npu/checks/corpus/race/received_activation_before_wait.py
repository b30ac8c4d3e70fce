"""A pipeline stage uses the activation of batch_isend_irecv before it waits for the tasks.

https://github.com/NVIDIA/apex/pull/1373
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
peer = 1 - dist.get_rank()
sent = paddle.full([4, 64], float(peer))
activation = paddle.zeros([4, 64])
operations = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, activation, peer)]
tasks = dist.batch_isend_irecv(operations)  # other side
if "corrected" in sys.argv:
    for task in tasks:
        task.wait()
hidden = paddle.nn.functional.relu(activation)  # planted
for task in tasks:
    task.wait()
