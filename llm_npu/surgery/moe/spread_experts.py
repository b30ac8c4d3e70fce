"""MoE layers with whole experts distributed over the tensor-parallel processes.

    out[t] = sum over the processes of their own experts' results for t

Every process has the expert indices and weights of all tokens. With sequence parallelism, each process holds
a shard of the tokens: they are gathered before the experts, and the sum is scattered.

T tokens, P processes, H hidden, E experts, K experts per token.
"""

from __future__ import annotations

from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import AllGatherOp, GatherOp, ReduceScatterOp

from . import experts


def of_all_tokens(logits, sequence_parallel: bool):
    """The logits of all tokens, [T, E], in every process; gathered from [T / P, E] if
    ``sequence_parallel``."""
    return GatherOp.apply(logits) if sequence_parallel else logits


def own_tokens(count: int) -> slice:
    """The rows of this process, which has ``count`` tokens of a sequence, in a tensor of all tokens."""
    rank = fleet.get_hybrid_communicate_group().get_model_parallel_rank()
    return slice(rank * count, (rank + 1) * count)


def routed_experts(block, tokens, probs, indices, sequence_parallel: bool):
    """Like ``experts.routed_experts``; tokens and result are [T / P, H] if ``sequence_parallel``.

    Gradients of tokens and probs are summed over the processes, because each process computes only the part
    of its local experts.
    """
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    probs = mp_ops._c_identity(probs, group=group)
    if sequence_parallel:
        return ReduceScatterOp.apply(
            experts.routed_experts(block.experts, AllGatherOp.apply(tokens), probs, indices)
        )
    out = experts.routed_experts(block.experts, mp_ops._c_identity(tokens, group=group), probs, indices)
    return mp_ops._mp_allreduce(out, group=group, use_calc_stream=True, use_model_parallel=True)
