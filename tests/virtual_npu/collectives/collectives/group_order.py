"""New groups whose first calls are in different orders on the ranks of the case."""

import sys
import time

import paddle
import paddle.distributed as dist
import ranks

case = sys.argv[2]
paddle.set_device("npu:0")
dist.init_parallel_env()
rank, everyone = dist.get_rank(), list(range(dist.get_world_size()))
pairs = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [0, 2])]
both = [dist.new_group(everyone) for _ in range(2)]
error, start = "", time.monotonic()
try:
    x = paddle.ones([4])
    if case == "same order":
        order = both
    elif case == "two groups":
        order = both if rank == 0 else both[::-1]
    else:  # a ring of three ranks, each of which begins with its group with the next one
        order = [pairs[rank], pairs[(rank + 2) % 3]]
    for group in order:
        dist.all_reduce(x, group=group)
    total = float(x.sum())
except RuntimeError as raised:
    error, total = str(raised), None
ranks.write({"error": error, "seconds": time.monotonic() - start, "total": total})
