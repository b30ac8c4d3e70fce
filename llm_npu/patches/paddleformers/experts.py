"""Patches for PaddleFormers' MoE models on npu."""

from __future__ import annotations

import functools

import paddle

from paddle_fused import paddle_release

from .without_cuda import supply

NPU_OPERATORS = "paddleformers.nn.moe.npu_fusion_ops"


@functools.cache
def fix_qwen3_moe_gate_dtype() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-MoE in bfloat16 or float16 fails without auto_cast ("The type of
    data we are trying to retrieve (float32) does not match the type of data (bfloat16)").

    The router's weight is always float32, and ``F.linear`` does not accept a bfloat16 input with it. The
    patch casts the router's input. Under auto_cast, which casts both, nothing changes.
    """
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeSparseMoeBlock

    build = Qwen3MoeSparseMoeBlock.__init__

    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        self.gate.register_forward_pre_hook(in_dtype_of_weight)

    Qwen3MoeSparseMoeBlock.__init__ = __init__


def in_dtype_of_weight(layer, inputs):
    """Cast the inputs of a linear layer to the dtype of its weight."""
    return tuple(x.astype(layer.weight.dtype) for x in inputs)


@functools.cache
def supply_router_losses() -> None:
    """PaddleFormers 1.1 and 1.2 without CUDA: ERNIE-4.5-MoE fails.

    With an npu, it fails on import ("No module named 'paddleformers.nn.moe.npu_fusion_ops'"): no release
    contains that module. On other devices the router's loss fails ("The kernel `cal_aux_loss` is not
    registered"), because ``int_bincount`` and ``cal_aux_loss`` are kernels of CUDA builds. The patch composes
    them from Paddle's operators.
    """
    if paddle.is_compiled_with_cuda():
        return
    supply(NPU_OPERATORS, npu_cal_aux_loss_func=cal_aux_loss)
    from paddleformers.nn.moe import topk_gate

    topk_gate.int_bincount, topk_gate.cal_aux_loss = int_bincount, cal_aux_loss


def int_bincount(x, low, high, dtype):
    """The number of occurrences of each of low, ..., high - 1 in the integers ``x``."""
    return paddle_release.counts_of(x - low, high - low).astype(dtype)


def cal_aux_loss(
    gate_prob,
    dispatch_mask,
    tokens_mask,
    dispatch_tokens_mask,
    num_experts,
    use_group,
    moe_k,
    *,
    clip_min=1e-6,
):
    """num_experts * sum over experts e of (share of the tokens that chose e) * (mean probability of e).

    Args:
        gate_prob: [T, E].
        dispatch_mask: [E], number of tokens per expert.
        masks: [T], 0 for ignored tokens.

    Returns the loss, the number of tokens and the shares.
    """
    masks = [mask for mask in (dispatch_tokens_mask, tokens_mask) if mask is not None]
    count = (
        masks[0].astype(gate_prob.dtype).sum()
        if masks
        else paddle.full([], gate_prob.shape[0], gate_prob.dtype)
    )
    count = paddle.clip(count, min=clip_min)
    shares = dispatch_mask.astype(gate_prob.dtype).detach() / count
    loss = (gate_prob.sum(0) / count * shares).sum() * num_experts
    if use_group:
        loss = loss / moe_k
    if len(masks) == 2:  # global and local: the value is local, the gradient global
        own = count / paddle.clip(masks[1].astype(gate_prob.dtype).sum(), min=clip_min)
        loss = loss + (own - 1) * loss.detach()
    return loss, count, shares
