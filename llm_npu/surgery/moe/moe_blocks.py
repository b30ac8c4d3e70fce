"""The sparse blocks of PaddleFormers, with each expert applied to its routed tokens.

    out[t] = sum over the K experts e of t of weight[t, e] * down_e(silu(gate_e(x[t])) * up_e(x[t]))

T tokens, H hidden, E experts, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle
import paddle.nn.functional as F
from paddle.distributed.fleet.utils.sequence_parallel_utils import GatherOp, ScatterOp

from llm_npu.models import own_experts
from llm_npu.surgery.fusable_layers import FusableLayer
from llm_npu.surgery.registry import NotFused, Replacement
from paddle_fused import paddle_release

from . import expert_parallel, spread_experts


def softmax_router(block, fusable: FusableLayer) -> Replacement | NotFused:
    """Qwen3-MoE; ``gate`` is a linear layer in float32."""
    reason = fusable.overridden(block) or _unsupported_reason(block)
    return NotFused(reason) if reason else Replacement(forward=qwen3_moe)


def sigmoid_router(block, fusable: FusableLayer) -> Replacement | NotFused:
    """DeepSeek-V3; ``gate`` selects the experts, and a shared expert processes every token."""
    reason = fusable.overridden(block) or _unsupported_reason(block)
    return NotFused(reason) if reason else Replacement(forward=deepseek_v3_moe)


def router_with_statistics(block, fusable: FusableLayer) -> Replacement | NotFused:
    """ERNIE-4.5-MoE; a bias per expert corrects the selection, and ``moe_statics`` counts tokens."""
    reason = fusable.overridden(block) or _unsupported_ernie(block) or _unsupported_reason(block)
    return NotFused(reason) if reason else Replacement(forward=ernie4_5_moe)


def _unsupported_ernie(block) -> str | None:
    config = block.config
    if config.moe_world_size > 1 and not block.is_mp_moe:
        return f"tokens are sent to experts in other processes (moe_group, {config.moe_world_size})"
    distributed = block.is_mp_moe or own_experts.share_of(block) is not None
    if config.tensor_model_parallel_size > 1 and not distributed:
        return "each tensor-parallel process has all experts (moe_group); accepted: moe_group mp"
    if min(config.moe_capacity) < block.gate.num_experts_tensor:
        return f"the gate drops tokens beyond an expert's capacity (moe_capacity {config.moe_capacity})"
    if block.group_experts or block.gate.use_multimodel_experts or block.all_to_all_dropout:
        return "experts are selected in groups (moe_group_experts), by token type, or with dropout"
    return None


def _unsupported_reason(block) -> str | None:
    if getattr(block, "fd_fallback", False):
        return "its experts share one parameter, the layout for FastDeploy (fd_fallback)"
    for number, expert in enumerate(block.experts):
        if expert is None:  # belongs to another process
            continue
        activation = type(expert.act_fn).__name__
        if activation != "Silu":
            return f"the activation of experts.{number} is {activation}, not silu"
    return None


def qwen3_moe(self, hidden_states):
    """hidden_states [B, S, H], or [T / processes, H] if sequence parallel -> same shape, logits [T, E]."""
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


def deepseek_v3_moe(self, hidden_states):
    """hidden_states [B, S, H] or [T, H] -> same shape."""
    indices, weights = self.gate(hidden_states)
    tokens = hidden_states.reshape([-1, hidden_states.shape[-1]])
    return routed(self, tokens, indices, weights, partial(self.shared_experts, hidden_states))


def routed(block, tokens, indices, weights, shared: Callable | None = None):
    """tokens [T, H], indices and weights [T, K] -> [T, H] in the dtype of tokens.

    ``shared`` computes the shared experts, during dispatch; their output is added and determines the shape.
    """
    out = expert_parallel.routed_experts(block, tokens, weights, indices, shared)
    if shared is None:
        return out.astype(tokens.dtype)
    out, of_shared = out
    return out.astype(tokens.dtype).reshape(of_shared.shape) + of_shared


def ernie4_5_moe(self, input, token_type_ids=None):
    """input [B, S, H] or [T, H] -> same shape, weights [T, K], router loss, (logits, scores).

    Computes the same result as PaddleFormers, whose kernels need CUDA. With sequence parallelism, input is
    [T / processes, H], and the weights and logits cover all tokens.
    """
    spread, share = self.config.moe_world_size > 1, own_experts.share_of(self)
    sequence_parallel = self.config.sequence_parallel and (spread or share is not None)
    tokens = input.reshape([-1, input.shape[-1]])
    logits, _, router_loss = self.gate(tokens, transform_weight=False)
    with paddle.amp.auto_cast(False):
        logits = spread_experts.of_all_tokens(logits, sequence_parallel)
        scores = self.gate.act(logits)
        choice = scores.detach()
        if self.use_correction_bias:
            choice = choice + self.moe_statics.e_score_correction_bias[0].detach()
        _, indices = paddle.topk(choice, self.k, axis=-1)
        weights = paddle.take_along_axis(scores, indices, 1, broadcast=False)
        if self.gate.norm_gate_logits:
            weights = weights / weights.sum(-1, keepdim=True).clip(min=1e-12)
        counts = paddle_release.counts_of(indices, scores.shape[-1]).astype("int64")
        if self.use_correction_bias:
            # Loading a model from a file casts the counts together with the weights.
            usage = self.moe_statics.expert_usage
            usage[0] = usage[0] + counts.astype(usage.dtype)
        router_loss = router_loss + _loss_of_ernies_router(self, counts, logits, scores, sequence_parallel)
    shared = None if self.shared_experts is None else partial(self.shared_experts, tokens)
    if spread:
        out = spread_experts.routed_experts(self, tokens, weights, indices, sequence_parallel)
        out = out.astype(tokens.dtype)
        out = out if shared is None else out + shared()
    elif sequence_parallel:
        own = spread_experts.own_tokens(tokens.shape[0])
        out = routed(self, tokens, indices[own], weights[own], shared)
    else:
        out = routed(self, tokens, indices, weights, shared)
    return out.reshape(input.shape), weights, router_loss, (logits, scores)


def _loss_of_ernies_router(block, counts, logits, scores, sequence_parallel: bool):
    """PaddleFormers' router losses of a process, from the logits and scores [T, E] of all tokens."""
    gate = block.gate
    loss = block._calc_router_loss(
        counts, logits, scores, gate.num_experts_tensor, block.group_experts, block.layer_idx
    )
    if sequence_parallel and gate.config.moe_orthogonal_loss_lambda:
        # The trainer sums the processes' gradients of the gate's weight. This loss depends only on the
        # weight, so every process would contribute its whole gradient.
        whole = gate.moe_orthogonal_loss_lambda[0] * gate._cal_orthogonal_loss(0, block.group_experts)
        others = 1 - 1 / block.config.tensor_model_parallel_size
        loss = loss - others * (whole - whole.detach())
    return loss
