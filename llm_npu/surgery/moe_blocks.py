"""The sparse blocks of PaddleFormers, on the tokens that chose each expert.

    out[t] = sum over the K experts e of t of weight[t, e] * down_e(silu(gate_e(x[t])) * up_e(x[t]))

T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

from functools import partial

import paddle
import paddle.nn.functional as F
from paddle.distributed.fleet.utils.sequence_parallel_utils import GatherOp, ScatterOp

from . import experts
from .registry import NotFused, Replacement
from .sites import Site


def softmax_router(block, found: Site) -> Replacement | NotFused:
    """Qwen3-MoE: ``gate`` is a linear layer in float32."""
    reason = found.overridden(block) or _refuses(block)
    return NotFused(reason) if reason else Replacement(forward=qwen3_moe)


def sigmoid_router(block, found: Site) -> Replacement | NotFused:
    """DeepSeek-V3: ``gate`` chooses the experts, and a shared expert gets every token."""
    reason = found.overridden(block) or _refuses(block)
    return NotFused(reason) if reason else Replacement(attributes={"moe": partial(routed, block)})


def _refuses(block) -> str | None:
    if block.fd_fallback:
        return "its experts are one parameter, as FastDeploy reads them (fd_fallback)"
    for number, expert in enumerate(block.experts):
        activation = type(expert.act_fn).__name__
        if activation != "Silu":
            return f"the activation of experts.{number} is {activation}, not silu"
    return None


def qwen3_moe(self, hidden_states):
    """hidden_states [B, S, H], or [T / processes, H] if sequence parallel -> the same, and logits [T, E]."""
    if self.sequence_parallel:
        hidden_states = GatherOp.apply(hidden_states)
    tokens = hidden_states.reshape([-1, hidden_states.shape[-1]])
    router_logits = self.gate(tokens.astype(self.gate.weight.dtype))
    with paddle.amp.auto_cast(False):
        scores = F.softmax(router_logits.astype("float32"), axis=-1)
        _, indices = paddle.topk(scores.detach(), self.top_k, axis=-1)
        weights = paddle.take_along_axis(scores, indices, 1, broadcast=False)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
    out = routed(self, tokens, indices, weights).reshape(hidden_states.shape)
    return ScatterOp.apply(out) if self.sequence_parallel else out, router_logits


def routed(block, tokens, indices, weights):
    """tokens [T, H], indices and weights [T, K] -> [T, H] of tokens' dtype, without shared experts."""
    return experts.mixture(block.experts, tokens, weights, indices).astype(tokens.dtype)
