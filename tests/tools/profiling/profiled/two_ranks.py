"""``two_ranks.py FOLDER PROFILE``: records collectives on the stream that computes and beside it."""

import sys

import paddle
import ranks
from paddle import distributed as dist

from llm_npu import profiling


def main(folder: str) -> None:
    paddle.set_device("npu")
    dist.init_parallel_env()
    x, summed = paddle.randn([256, 256]), paddle.ones([1024])
    dist.all_reduce(summed)
    with profiling.Capture(folder, warmup=0, active=2) as capture:
        for _ in range(2):
            dist.stream.all_reduce(summed, use_calc_stream=True)
            work = dist.all_reduce(x, sync_op=False)
            paddle.matmul(x, x)
            work.wait()
            parts: list[paddle.Tensor] = []
            dist.all_gather(parts, summed)
            capture.step()
    ranks.write({"folder": str(capture.folder)})


if __name__ == "__main__":
    main(sys.argv[2])
