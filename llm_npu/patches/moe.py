"""Patches for PaddleNLP's MoE models."""

from __future__ import annotations

import functools

import paddle


@functools.cache
def fix_mixtral_expert_weights() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3.1 and later: Mixtral fails when an expert receives tokens.

    ``paddle.where`` now returns indices of shape [n] instead of [n, 1]. The block multiplies an expert's rows
    [n, H] by weights [n], which raises "Broadcast dimension mismatch". The patch uses weights [n, 1].
    """
    from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock

    def forward(self, hidden_states):
        tokens = hidden_states.reshape([-1, self.hidden_dim])
        router_logits = self.gate(tokens)
        with paddle.amp.auto_cast(False):
            probs = paddle.nn.functional.softmax(router_logits.astype("float32"), axis=-1)
        probs, chosen = paddle.topk(probs, self.top_k)
        probs = (probs / probs.sum(-1, keepdim=True)).astype(tokens.dtype)
        out = paddle.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, choice = paddle.nonzero(chosen == number, as_tuple=True)
            if token.size > 0:
                result = expert(paddle.gather(tokens, token)) * probs[token, choice].unsqueeze(-1)
                out = paddle.index_add(out, token, 0, result.astype(out.dtype))
        return out.reshape(hidden_states.shape), router_logits

    MixtralSparseMoeBlock.forward = forward


@functools.cache
def fix_mixtral_router_loss_mask() -> None:
    """PaddleNLP 3.0.0b4: Mixtral with ``output_router_logits`` fails with masks of three dims ("cannot access
    local variable 'tokens_per_expert'"), and with mask objects ("object has no attribute 'shape'").

    ``load_balancing_loss_func`` supports masks of two and four dims. The patch passes only masks of two dims.
    With any other mask padding is counted, as upstream does with four.
    """
    from paddlenlp.transformers.mixtral import modeling

    compute = modeling.load_balancing_loss_func

    @functools.wraps(compute)
    def load_balancing_loss_func(gate_logits, num_experts, top_k=2, attention_mask=None):
        of_tokens = len(getattr(attention_mask, "shape", ())) == 2
        return compute(gate_logits, num_experts, top_k, attention_mask if of_tokens else None)

    modeling.load_balancing_loss_func = load_balancing_loss_func


@functools.cache
def fix_moe_gate_int64() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3.2 and later: gates fail because int64 x int32 is no longer promoted.

    ``PretrainedMoEGate._priority`` multiplies an int32 mask by its int64 cumulative sum.
    """
    from paddlenlp.transformers.moe_gate import PretrainedMoEGate

    def _priority(self, topk_idx, capacity):
        """[T, K] -> int32 [T, E, capacity]: 1 at a token's place in the queue of each of its experts.

        First choices precede second choices, and so on.
        """
        choices = paddle.nn.functional.one_hot(topk_idx.T.flatten(), self.num_experts).astype("int64")
        places = (paddle.cumsum(choices, axis=0) * choices).reshape([self.top_k, -1, self.num_experts])
        return (places.max(0).unsqueeze(-1) == paddle.arange(1, capacity + 1)).astype("int32")

    PretrainedMoEGate._priority = _priority


@functools.cache
def fix_moe_gate_gradient() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3: gate gradients are wrong by about 1 per chosen expert.

    ``PretrainedMoEGate.topkgating`` casts the weights to the dispatch mask without detaching them. The
    gradient, cast to bool and back to float, is 1 wherever it is nonzero.
    """
    from paddlenlp.transformers.moe_gate import PretrainedMoEGate

    choose = PretrainedMoEGate.topkgating

    def topkgating(self, gates):
        capacity, weights, mask, *others = choose(self, gates)
        return capacity, weights, mask.detach(), *others

    PretrainedMoEGate.topkgating = topkgating


@functools.cache
def fix_qwen2_moe_norm_topk_prob() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE ignores ``norm_topk_prob``.

    The block does not pass the setting to its gate, so the logits of pretrained weights are wrong.
    """
    from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate

    build = Qwen2MoeGate.__init__

    def __init__(self, config, num_experts, expert_hidden_size, **settings):
        build(self, config, num_experts, expert_hidden_size, norm_topk_prob=config.norm_topk_prob, **settings)

    Qwen2MoeGate.__init__ = __init__


@functools.cache
def fix_qwen2_moe_gate_dtype() -> None:
    """PaddleNLP 3.0.0b4: a Qwen2-MoE trained with AMP O2 fails in generation, outside auto_cast.

    The gate keeps its weights in float32, and ``F.linear`` does not accept a bfloat16 input with them. The
    patch casts the input to the weights' dtype. Under auto_cast, which casts both, nothing changes.
    """
    from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate

    choose = Qwen2MoeGate.forward

    def forward(self, hidden_states):
        return choose(self, hidden_states.astype(self.weight.dtype))

    Qwen2MoeGate.forward = forward


@functools.cache
def fix_qwen2_moe_auxiliary_loss() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE with ``output_router_logits`` fails ("The axis is expected to be in ...").

    Its blocks return the gates' auxiliary losses, but the model treats them as logits. The patch uses their
    mean as the auxiliary loss. Unlike a loss computed from logits, it counts padding.
    """
    from paddlenlp.transformers.qwen2_moe import modeling

    def load_balancing_loss_func(gate_losses, num_experts, top_k=2, attention_mask=None):
        return paddle.stack(gate_losses).mean()

    modeling.load_balancing_loss_func = load_balancing_loss_func


@functools.cache
def fix_qwen2_moe_groups() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE loses experts if another parallel method is active.

    If fleet has a data-parallel group, as with pipelines of fewer stages than ranks, its blocks distribute
    their experts over that group, also without ``use_expert_parallel``: a rank has None for the others. The
    patch keeps all experts; ``llm_npu.models.own_experts`` distributes them on request.
    """
    from paddlenlp.transformers.moe_layer import MoELayer

    build = MoELayer.__init__

    @functools.wraps(build)
    def __init__(self, *args, moe_group="dummy", **settings):
        build(self, *args, moe_group=moe_group, **settings)

    MoELayer.__init__ = __init__
