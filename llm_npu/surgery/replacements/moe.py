"""MoE layers with ``paddle_fused``'s MoE operators and swiglu.

    out[t] = sum over the K experts e of t of prob[t, e] * down_e(silu(gate_e(x[t])) * up_e(x[t]))

``llm_npu.models.family.VARIANTS`` describes the variants under ``moe``.

B batch, S sequence, T = B * S tokens, H hidden, E experts, K experts per token.
"""

from __future__ import annotations

from functools import partial

import paddle
import paddle.nn.functional as F

import paddle_fused
from llm_npu.core import auto_cast
from llm_npu.models import own_experts
from llm_npu.surgery.fusable_layers import fusable_layer
from llm_npu.surgery.moe import expert_parallel, experts, moe_blocks, router_scores
from llm_npu.surgery.registry import NotFused, Replacement, kernel


def example(block, batch) -> list:
    """The permutations and the experts' matmuls; the experts' layers are fusable layers of ``swiglu``."""
    router = block.gate
    width = router.weight.shape[0]
    top_k = block.top_k if hasattr(block, "top_k") else router.top_k
    count = batch.rows * batch.length
    indices = paddle.zeros([count, top_k], dtype="int64")
    order = paddle.arange(count * top_k, dtype="int32")
    tokens, rows = batch.empty(count, width), batch.empty(count * top_k, width)
    probs = batch.empty(count, top_k, dtype="float32")
    return [
        lambda: paddle_fused.moe_token_permute(tokens, indices),
        *_experts_example(own_experts.of_block(block), batch, count * top_k),
        lambda: paddle_fused.moe_token_unpermute(rows, order, probs),
    ]


def _experts_example(layers: list, batch, count: int) -> list:
    """The calls for the experts ``layers`` on ``count`` rows."""
    weights = experts.grouped_weights(layers) or ()
    sizes = [count] + [0] * (len(layers) - 1)
    calls = []
    for matrices in filter(None, weights):
        depth, columns = matrices[0].shape
        x, matrix = batch.empty(count, depth), batch.empty(depth, columns)
        calls.append(partial(paddle_fused.grouped_matmul, x, [matrix] * len(layers), sizes, 1))
    return calls


@kernel("moe", known_as="npu_fused_moe", operator="grouped_matmul", example=example)
def replace(layer) -> Replacement | NotFused | None:
    """The sparse block of a family, with the same arguments and results.

    Not fused: experts distributed over processes, activations other than SiLU, and gates that drop tokens or
    do not select experts by probability.
    """
    fusable = fusable_layer(layer, "moe")
    if fusable is None:
        return None
    if fusable.variant in BLOCKS:
        return BLOCKS[fusable.variant](layer, fusable)
    forward, unsupported_reason = VARIANTS[fusable.variant]
    reason = (
        fusable.overridden(layer)
        or experts.unsupported_reason(own_experts.of_block(layer))
        or unsupported_reason(layer)
    )
    return NotFused(reason) if reason else Replacement(forward=forward)


def _unsupported_routed(block) -> str | None:
    for number, expert in enumerate(own_experts.of_block(block)):
        activation = type(expert.act_fn).__name__
        if activation != "SiLUActivation":
            return f"the activation of experts.{number} is {activation}, not silu"
    return None


def _unsupported_gated(block) -> str | None:
    gate = block.gate
    if block.expert_parallel_degree > 1:
        return f"tokens are sent to other processes (expert parallelism, {block.expert_parallel_degree})"
    if gate.drop_tokens:
        return "the gate drops tokens beyond an expert's capacity (drop_tokens)"
    if getattr(gate, "scoring_func", "softmax") != "softmax":
        return f"the gate scores experts by {gate.scoring_func}, not by softmax"
    if gate.topk_method != "greedy":
        return f"the gate selects experts by {gate.topk_method}, not by probability"
    if not all(expert.fuse_swiglu for expert in own_experts.of_block(block)):
        return f"the activation of the experts is {block.config.hidden_act}, not silu"
    return None


def routed(self, hidden_states):
    """hidden_states [B, S, H], or [T, H] if sequence parallel -> the same shape, the router's logits [T, E].

    If ranks share sequences and the model has a router loss, the logits cover the tokens of all ranks.
    """
    tokens = hidden_states.reshape([-1, hidden_states.shape[-1]])
    router_logits = self.gate(tokens)
    with paddle.amp.auto_cast(False):
        scores = F.softmax(router_logits.astype("float32"), axis=-1)
        probs, indices = _chosen(scores, self.top_k, norm_topk_prob=True)
    # The router logits have the dtype in which AMP computes matmuls.
    out = expert_parallel.routed_experts(self, tokens.astype(router_logits.dtype), probs, indices)
    out = out.astype(hidden_states.dtype).reshape(hidden_states.shape)
    whole = router_scores.of_whole_sequences(self, router_logits)
    return out, whole if whole is router_logits else whole.flatten(0, 1)


def gated(self, hidden_states):
    """hidden_states [B, S, H], or [T, H] if sequence parallel -> the same shape, and the gate's loss.

    ``norm_topk_prob`` comes from the configuration; PaddleNLP 3.0.0b4 does not pass it to its gate.
    """
    gate = self.gate
    # The gate stays in float32 when AMP O2 casts a model; outside auto_cast its input must be cast.
    logits = F.linear(hidden_states.astype(gate.weight.dtype), gate.weight)
    with paddle.amp.auto_cast(False):
        scores = F.softmax(logits.astype("float32"), axis=-1).astype(paddle.get_default_dtype())
        by_token = scores.reshape([-1, gate.num_experts])
        probs, indices = _chosen(by_token, gate.top_k, self.norm_topk_prob)
        auxiliary_loss = _auxiliary_loss(self, scores, indices)
    (tokens,) = auto_cast.cast_inputs(hidden_states.reshape([-1, hidden_states.shape[-1]]))
    shared_expert = partial(self.shared_expert, hidden_states)
    out, shared = expert_parallel.routed_experts(self, tokens, probs, indices, shared_expert)
    out = out.reshape(hidden_states.shape)
    return out + F.sigmoid(self.shared_expert_gate(hidden_states)) * shared, auxiliary_loss


VARIANTS = {"router": (routed, _unsupported_routed), "gate and shared expert": (gated, _unsupported_gated)}
BLOCKS = {
    "softmax router": moe_blocks.softmax_router,
    "sigmoid router": moe_blocks.sigmoid_router,
    "router with statistics": moe_blocks.router_with_statistics,
}


def _chosen(scores, top_k: int, norm_topk_prob: bool) -> tuple:
    """The probabilities and indices of the top_k experts of each row of scores [T, E], both [T, K]."""
    _, indices = paddle.topk(scores.detach(), top_k, axis=-1)  # paddle-custom-npu has no gradient of topk
    probs = paddle.take_along_axis(scores, indices, 1, broadcast=False)
    return probs / probs.sum(-1, keepdim=True) if norm_topk_prob else probs, indices


def _auxiliary_loss(block, scores, indices):
    """The gate's loss for scores [B, S, E], per sequence if ``seq_aux`` is set, else over all tokens.

    With sequence parallelism, scores are [T, E]. Unless ranks share the loss, it is then not used: the
    sequences are unknown, so it is the one over this rank's tokens.
    """
    gate = block.gate
    length = scores.shape[1] if scores.ndim == 3 else gate.config.seq_length
    whole = router_scores.of_whole_sequences(block, scores, length)
    by_token = whole.reshape([-1, gate.num_experts])
    if whole is not scores:
        _, indices = paddle.topk(by_token.detach(), gate.top_k, axis=-1)
    if getattr(gate.config, "seq_aux", False) and whole.ndim == 3:
        return gate._cal_seq_aux_loss(whole, gate.top_k, indices)
    return gate._cal_aux_loss(by_token, F.one_hot(indices, gate.num_experts).sum(1))
