"""MoE layers with expert parallelism: tokens are dispatched to the ranks of their experts."""

from __future__ import annotations

from collections.abc import Callable

from llm_npu.models import own_experts
from paddle_fused.expert_parallel import expert_parallel

from . import experts
from .capacity import CAPACITY


def routed_experts(block, tokens, probs, indices, shared: Callable | None = None):
    """`experts.routed_experts` of a block; collective if ``llm_npu.models.own_experts`` has built it.

    Args:
        shared: computes the shared experts; called during the dispatch of tokens.

    Returns:
        [T, H]; with ``shared``, the pair (result, ``shared()``).
    """
    if (capacity := block.__dict__.get(CAPACITY)) is not None:
        indices = capacity.kept(probs, indices, len(block.experts))
    share = own_experts.share_of(block)
    if share is None:
        of_shared = None if shared is None else shared()
        out = experts.routed_experts(block.experts, tokens, probs, indices)
        return out if shared is None else (out, of_shared)
    layers = own_experts.of_block(block)
    settings = {"num_experts": len(block.experts), "group": share.group, "chunks": share.chunks}

    def results_of(rows, sizes, own):
        return experts.results_of(layers[own], rows, sizes)

    return expert_parallel(tokens, probs, indices, results_of, meanwhile=shared, **settings)
