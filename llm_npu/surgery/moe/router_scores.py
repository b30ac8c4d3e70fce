"""Router scores of a whole micro batch, gathered from the ranks that share its tokens.

A router's loss is not a mean over tokens, so the mean of the ranks' own losses would be a different loss.
Ranks gather the scores of all tokens instead, E numbers per token.

Legend: B rows, S tokens of a row, T tokens of this rank, E experts.
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils.sequence_parallel_utils import GatherOp

from llm_npu.core.errors import UserError
from llm_npu.surgery.registry import find
from llm_npu.surgery.swap import is_swapped, kernels_of

OPERATOR = "moe"
ROUTER_LOSS = "output_router_logits"  # the configuration's field
RANKS = "_ranks_of_a_sequence"  # attribute of blocks
TENSOR_PARALLEL = "tensor parallel"  # instead of a group: the ranks of sequence parallelism


def share(model, group) -> None:
    """Let the ranks of ``group``, which share every sequence, compute the router losses together.

    Args:
        group: of ``paddle.distributed``, or ``TENSOR_PARALLEL``, which must be shared first.

    Raises:
        UserError: an MoE layer is not fused.
    """
    for path, block in find(OPERATOR).sites(model).items():
        if not (is_swapped(block) and OPERATOR in kernels_of(block)):
            raise UserError(
                f"{path} ({type(block).__name__}) is not fused, so its router loss would count the tokens of "
                "one rank only; leave use_fused_moe on, or set output_router_logits to false in config.json"
            )
        block.__dict__[RANKS] = [*block.__dict__.get(RANKS, ()), group]


def of_whole_sequences(block, scores, length: int | None = None):
    """The scores of the tokens of all ranks. Collective if `share` was called, else ``scores`` unchanged.

    Args:
        scores: [T, E] or [B, S, E]. length: the tokens of a row on this rank, without sequence parallelism.
        If None, the order of the tokens is unspecified.

    Returns:
        [B, S, E], with S tokens of a whole row; B is 1 if ``length`` is None.
    """
    groups = block.__dict__.get(RANKS)
    if groups is None:
        return scores
    experts = scores.shape[-1]
    rows = [1, -1, experts] if length is None else [-1, length, experts]
    for group in groups:
        if group == TENSOR_PARALLEL:
            scores = GatherOp.apply(scores.reshape([-1, experts])).reshape(rows)
        else:
            scores = _TokensOfAllRanks.apply(scores.reshape(rows), group)
    return scores


class _TokensOfAllRanks(PyLayer):
    """[B, S / n, E] of each of n ranks -> [B, S, E]. The gradient is the sum over the ranks' losses."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts: list[paddle.Tensor] = []
        dist.all_gather(parts, x.contiguous(), group=group)
        return paddle.concat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=ctx.group)
        return paddle.split(gradient, ctx.group.nranks, 1)[ctx.group.rank]
