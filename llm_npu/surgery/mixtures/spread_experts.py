"""Mixtures whose experts are spread over the processes of tensor parallelism, each whole in one of them.

    out[t] = sum over the processes of what their own experts give for t

Every process has the choices and weights of all tokens. With sequence parallelism it has a part of the tokens
themselves: for the experts they are gathered, and the sum is scattered.

T tokens, P processes, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import AllGatherOp, GatherOp, ReduceScatterOp

from . import experts


def of_all_tokens(logits, sequence_parallel: bool):
    """[T, E] in every process, which computes the same from it. From [T / P, E] if ``sequence_parallel``."""
    return GatherOp.apply(logits) if sequence_parallel else logits


def mixture(block, tokens, probs, indices, sequence_parallel: bool):
    """As ``experts.mixture``; tokens and result are [T / P, H] if ``sequence_parallel``.

    A process knows what its own experts contribute to the gradients of tokens and probs: they are summed.
    """
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    probs = mp_ops._c_identity(probs, group=group)
    if sequence_parallel:
        return ReduceScatterOp.apply(
            experts.mixture(block.experts, AllGatherOp.apply(tokens), probs, indices)
        )
    out = experts.mixture(block.experts, mp_ops._c_identity(tokens, group=group), probs, indices)
    return mp_ops._mp_allreduce(out, group=group, use_calc_stream=True, use_model_parallel=True)
