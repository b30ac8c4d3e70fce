"""One of two ranks: how long collectives take that are waited for, and those of the calling thread.

communication_program.py FOLDER CALLS
"""

import sys

import ranks

import virtual_npu

virtual_npu.activate()

import paddle  # noqa: E402
from paddle import distributed  # noqa: E402


def timed(work) -> list[float]:
    before = virtual_npu.communication_time()
    work()
    paddle.device.synchronize()
    return list(virtual_npu.communication_time().since(before))


def main(calls: int) -> None:
    before = list(virtual_npu.communication_time())
    distributed.init_parallel_env()
    tensor = paddle.ones([4])
    distributed.all_reduce(tensor)  # the group is made

    def waited():
        for _ in range(calls):
            distributed.all_reduce(tensor, sync_op=False).wait()
            tensor.numpy()

    def own():
        for _ in range(calls):
            distributed.stream.all_reduce(tensor, sync_op=True, use_calc_stream=True)

    ranks.write({"before": before, "waited": timed(waited), "own": timed(own)})


main(int(sys.argv[2]))
