"""What time collectives take over the emulated links; the cost of waiting.

timing.py FOLDER             two ranks
timing.py FOLDER all_reduce  any number of ranks
"""

from __future__ import annotations

import sys
import time

import paddle
import paddle.distributed as dist
import ranks

MEGABYTE = 1000**2
SIZE = 4 * MEGABYTE  # bytes that a collective of two ranks takes through each rank's link, one way
IN_FLIGHT = 4
REPEATS = 3


def vector(size: int) -> paddle.Tensor:
    return paddle.ones([size // 4])


def exchange(sent, other) -> None:
    peer = 1 - dist.get_rank()
    for task in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, other, peer)]
    ):
        task.wait()


def one_way(tensor) -> None:
    dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)


def collectives() -> dict:
    """Calls that send SIZE bytes through the link of each of two ranks, in one or both directions."""
    vector_a, other, both = vector(SIZE), vector(SIZE), vector(2 * SIZE)
    return {
        "all_reduce": lambda: dist.all_reduce(vector_a),
        "all_gather": lambda: dist.stream.all_gather(both, vector_a),
        "reduce_scatter": lambda: dist.stream.reduce_scatter(vector_a, both),
        "broadcast": lambda: dist.broadcast(vector_a, 0),
        "reduce": lambda: dist.reduce(vector_a, 0),
        "all_to_all": lambda: dist.stream.alltoall_single(both, vector(2 * SIZE)),
        "send": lambda: one_way(vector_a),
        "exchange": lambda: exchange(vector_a, other),
    }


def measured(call) -> dict:
    """Seconds of wall time and of CPU time."""
    started, computed = time.monotonic(), time.process_time()
    call()
    return {"seconds": time.monotonic() - started, "computed": time.process_time() - computed}


def overlapped() -> dict:
    """Rank 1 joins an all_reduce when rank 0, which has called it, has computed something."""
    vector_a, factor, store = vector(SIZE), paddle.ones([64, 64]), dist.collective._default_store
    dist.barrier()
    if dist.get_rank() == 1:
        store.get("rank 0 has computed")  # waits for it
    called = time.monotonic()
    task = dist.all_reduce(vector_a, sync_op=False)
    product = float(paddle.matmul(factor, factor).sum())
    done = task.is_completed()
    store.set("rank 0 has computed", "yes")
    task.wait()
    paddle.device.synchronize()
    seconds = time.monotonic() - called
    return {
        "product": product,
        "done before rank 1 came": done,
        "sum": float(vector_a.sum()),
        "seconds": seconds,
    }


def in_flight() -> None:
    """IN_FLIGHT concurrent calls that together send SIZE bytes through the link."""
    parts = [vector(SIZE // IN_FLIGHT) for _ in range(IN_FLIGHT)]
    for task in [dist.all_reduce(part, sync_op=False) for part in parts]:
        task.wait()
    paddle.device.synchronize()


def wait_for_a_slow_rank() -> None:
    store = dist.collective._default_store
    if dist.get_rank() == 0:
        store.set("rank 0 is about to wait", "yes")
    else:
        store.get("rank 0 is about to wait")  # waits for it
        time.sleep(1)  # what is measured is what this costs the other rank
    dist.all_reduce(vector(4))


def main() -> None:
    dist.init_parallel_env()
    report = {"times": {}}
    only = sys.argv[2:]
    for name, call in collectives().items():
        if only and name not in only:
            continue
        call()
        report["times"][name] = []
        for _ in range(REPEATS):
            dist.barrier()
            report["times"][name].append(measured(call))
    if only:
        return ranks.write(report)
    report["in flight"] = []
    for _ in range(REPEATS):
        dist.barrier()
        report["in flight"].append(measured(in_flight))
    report["overlapped"] = overlapped()
    dist.barrier()
    report["waiting"] = measured(wait_for_a_slow_rank)
    ranks.write(report)


if __name__ == "__main__":
    main()
