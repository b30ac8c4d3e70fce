"""Transfers of an interleaved pipeline: each stage sends to and receives from both neighbours in one step.

ring.py FOLDER: what each stage got with llm_npu.patches.hybrid_parallel, and the error without it.
"""

import paddle
import paddle.distributed as dist
import ranks
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

from llm_npu.patches import hybrid_parallel

SIZES = (5, 3 << 20)  # elements; the larger ones are more than a chunk of the device's


def exchange(transfers, size: int) -> list[float]:
    """The least and the greatest number from the stage before and from the next one."""
    own = float(dist.get_rank())
    sent_back, sent_on = paddle.full([size], own + 0.25), paddle.full([size], own + 0.5)
    from_before, from_next = paddle.empty([size]), paddle.empty([size])
    transfers(sent_back, from_before, sent_on, from_next, fleet.get_hybrid_communicate_group())
    return [float(value) for got in (from_before, from_next) for value in (got.min(), got.max())]


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"pp_degree": int(dist.get_world_size())}
    fleet.init(is_collective=True, strategy=strategy)
    p2p_communication.initialize_p2p_groups(fleet.get_hybrid_communicate_group())
    upstream = p2p_communication._batched_p2p_ops
    hybrid_parallel.apply()
    results = {
        "patched": [exchange(p2p_communication._batched_p2p_ops, size) for size in SIZES],
        "upstream": "",
    }
    try:
        exchange(upstream, SIZES[0])
    except RuntimeError as error:
        results["upstream"] = str(error)
    ranks.write(results)


main()
