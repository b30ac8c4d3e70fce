"""Mixtures whose experts are distributed over ranks, to which tokens are sent."""

from __future__ import annotations

from functools import partial

from llm_npu.models import own_experts
from paddle_fused.expert_parallel import expert_parallel

from . import experts


def mixture(block, tokens, probs, indices):
    """`experts.mixture` of a block; collective if ``llm_npu.models.own_experts`` has built it."""
    share = own_experts.share_of(block)
    if share is None:
        return experts.mixture(block.experts, tokens, probs, indices)
    own = partial(experts.results_of, own_experts.of_block(block))
    return expert_parallel(tokens, probs, indices, own, num_experts=len(block.experts), group=share.group)
