"""``split_sequences.py FOLDER PROFILE``: records a ring in the first step, and Ulysses in the second."""

import sys

import paddle
import ranks
from paddle import distributed as dist

from llm_npu import profiling
from paddle_fused import masks
from paddle_fused.context_parallel.ring import ring_attention
from paddle_fused.context_parallel.ulysses import ulysses_attention

TOKENS, HEADS, SIZE = 512, 4, 64


def main(folder: str) -> None:
    paddle.set_device("npu")
    dist.init_parallel_env()
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups:
        dist.barrier(group)
    query, key, value = (paddle.randn([1, TOKENS, HEADS, SIZE]).astype("bfloat16") for _ in range(3))
    attentions = (
        lambda: ring_attention(query, key, value, masks.causal(), group=groups[0], backward_group=groups[1]),
        lambda: ulysses_attention(query, key, value, masks.causal(), group=groups[0]),
    )
    for attend in attentions:  # what is set up or measured once
        attend()
    with profiling.Capture(folder, warmup=0, active=2) as capture:
        for attend in attentions:
            attend()
            paddle.device.synchronize()
            capture.step()
    ranks.write({"folder": str(capture.folder)})


if __name__ == "__main__":
    main(sys.argv[2])
