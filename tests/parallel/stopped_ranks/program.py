"""One of four ranks stops during an exchange: the error that each other rank raises.

program.py FOLDER METHOD PASS: rank STOPPED stops before its second transfer in the forward or backward PASS.
"""

import itertools
import os
import signal
import sys
import time

import paddle
import paddle.distributed as dist
import ranks

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel.hybrid import hybrid_attention
from paddle_fused.context_parallel.ring import ring_attention
from paddle_fused.context_parallel.ulysses import ulysses_attention
from paddle_fused.expert_parallel import expert_parallel

STOPPED = 1
METHODS = ("ring", "Ulysses", "ring of Ulysses", "experts")
TOKENS, HEADS, SIZE = 8, 4, 16  # of a rank
EXPERTS, TOP_K = 8, 2


def groups(*members: list[int]) -> list:
    """Two groups of this rank, each one of ``members``, which have made their communicators."""
    own = []
    for _ in range(2):
        new = [dist.new_group(some) for some in members]
        own += [group for group, some in zip(new, members, strict=True) if dist.get_rank() in some]
    for group in own:
        dist.barrier(group)
    return own


def attention(function, **groups_of_call):
    inputs = [paddle.randn([1, TOKENS, HEADS, SIZE]) for _ in range(3)]
    for x in inputs:
        x.stop_gradient = False
    return lambda: function(*inputs, masks.causal(), **groups_of_call)


def experts(group):
    tokens, probs = paddle.randn([TOKENS, SIZE]), paddle.ones([TOKENS, TOP_K])
    tokens.stop_gradient = False
    weight = paddle.randn([EXPERTS // group.nranks, SIZE, SIZE])
    indices = paddle.arange(TOKENS * TOP_K).reshape([TOKENS, TOP_K]) % EXPERTS  # rows for all ranks

    def of_rank(rows, sizes):
        return paddle_fused.grouped_matmul(rows, weight, sizes, 1)

    return lambda: expert_parallel(tokens, probs, indices, of_rank, num_experts=EXPERTS, group=group)


def method(name: str):
    """The forward pass."""
    if name == "ring of Ulysses":
        heads_group, _ = groups([0, 1], [2, 3])
        ring, other = groups([0, 2], [1, 3])
        return attention(hybrid_attention, ring_group=ring, backward_group=other, heads_group=heads_group)
    first, second = groups([0, 1, 2, 3])
    if name == "ring":
        return attention(ring_attention, group=first, backward_group=second)
    return attention(ulysses_attention, group=first) if name == "Ulysses" else experts(first)


def stop_before_second_transfer() -> None:
    transfer, number = dist.isend, itertools.count()

    def isend(*args):
        if next(number) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return transfer(*args)

    dist.isend = isend


def train(forward, stop_in: str = "") -> None:
    if stop_in == "forward":
        stop_before_second_transfer()
    out = forward()
    if stop_in == "backward":
        stop_before_second_transfer()
    out.sum().backward()
    paddle.device.synchronize()


def main() -> None:
    dist.init_parallel_env()
    forward = method(sys.argv[2])
    train(forward)
    started = time.monotonic()
    try:
        train(forward, sys.argv[3] if dist.get_rank() == STOPPED else "")
        error = ""
    except (RuntimeError, OSError) as caught:  # Paddle's backward pass raises an OSError
        error = str(caught)
    ranks.write({"error": error, "seconds": time.monotonic() - started})


if __name__ == "__main__":
    main()
