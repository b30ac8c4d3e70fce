"""Mixtures of experts as the plain loop over experts of their papers.

PaddleNLP's own blocks stop with an error on Paddle 3.3.1, so this loop is what the unfused models compute.
"""

from __future__ import annotations

import types

import paddle
import paddle.nn.functional as F
from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock
from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeSparseMoEBlock


def loop_over_experts(model) -> None:
    """Gives each MoE layer in ``model`` the loop for its forward."""
    for layer in model.sublayers():
        if isinstance(layer, Qwen2MoeSparseMoEBlock):
            layer.forward = types.MethodType(_qwen2_moe, layer)
        elif isinstance(layer, MixtralSparseMoeBlock):
            layer.forward = types.MethodType(_mixtral, layer)


def _qwen2_moe(block, hidden):
    logits = F.linear(hidden, block.gate.weight)
    routed = _experts(hidden, logits, block.experts, block.top_k, block.norm_topk_prob)
    return routed + F.sigmoid(block.shared_expert_gate(hidden)) * block.shared_expert(hidden), logits


def _mixtral(block, hidden):
    logits = block.gate(hidden)
    return _experts(hidden, logits, block.experts, block.top_k, True), logits


def _experts(hidden, logits, experts, top_k: int, norm_topk_prob: bool):
    """sum over experts e of prob[t, e] * expert_e(hidden[t]), where prob is 0 beyond the top_k."""
    every = F.softmax(logits.astype("float32"), axis=-1)
    kept, chosen = paddle.topk(every, top_k, axis=-1)
    if norm_topk_prob:
        kept = kept / kept.sum(-1, keepdim=True)
    one_hot = F.one_hot(chosen, len(experts)).astype(kept.dtype)  # [B, S, K, E]
    probabilities = (one_hot * kept.unsqueeze(-1)).sum(-2).astype(hidden.dtype)
    total = paddle.zeros_like(hidden)
    for number, expert in enumerate(experts):
        total = total + probabilities[..., number : number + 1] * expert(hidden)
    return total
