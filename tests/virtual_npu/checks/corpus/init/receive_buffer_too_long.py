"""The receive buffer is longer than what the peer sends, and the program uses all of it.

https://github.com/pytorch/pytorch/issues/113376
"""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
sent, longest = 6, 8
if dist.get_rank() == 0:
    dist.send(paddle.ones([sent]), dst=1)
else:
    buffer = paddle.empty([longest])  # other side
    dist.recv(buffer[:sent], src=0)
    received = buffer[:sent] if "corrected" in sys.argv else buffer
    total = received.sum()  # planted
    print("total", float(total))
