"""ERNIE-4.5's MoE layer as a plain loop over experts.

PaddleFormers' own block is made of kernels that only CUDA builds of Paddle have, so this loop is what the
unfused model computes.
"""

from __future__ import annotations

import types

import paddle
import paddle.nn.functional as F


def loop_over_ernies_experts(model) -> None:
    """Gives each MoE layer in ``model`` the loop for its forward."""
    for layer in model.sublayers():
        if type(layer).__name__ == "Ernie4_5_MoeSparseMoeBlock":
            layer.forward = types.MethodType(_block, layer)


def _block(block, hidden):
    gate, count = block.gate, len(block.experts)
    logits = F.linear(hidden.astype("float32"), gate.weight)
    scores = F.softmax(logits, axis=-1)
    corrected = scores + block.moe_statics.e_score_correction_bias[0]
    kept = scores * _chosen(corrected, block.k, count)
    kept = kept / kept.sum(-1, keepdim=True)
    total = block.shared_experts(hidden)
    for number, expert in enumerate(block.experts):
        total = total + kept[..., number : number + 1].astype(hidden.dtype) * expert(hidden)
    logits, scores = logits.reshape([-1, count]), scores.reshape([-1, count])
    # The choice that is balanced is the one without the correction.
    shares = _chosen(scores, block.k, count).mean(0)
    config = block.config
    loss = (
        config.router_aux_loss_coef * count * (shares.detach() * scores.mean(0)).sum()
        + config.router_z_loss_coef * paddle.logsumexp(logits, axis=1).square().mean()
        + config.moe_orthogonal_loss_lambda * _orthogonality(gate.weight)
    )
    return total, kept, loss.reshape([1]), (logits, scores)


def _chosen(scores, top_k: int, count: int):
    """1 for the top_k experts of each token, else 0."""
    _, indices = paddle.topk(scores.detach(), top_k, axis=-1)
    return F.one_hot(indices, count).sum(-2).astype(scores.dtype)


def _orthogonality(weight):
    """The mean square by which the products of the experts' directions [H, E] differ from the identity."""
    unit = weight / weight.square().sum(0, keepdim=True).sqrt()
    return (
        (paddle.matmul(unit, unit, transpose_x=True) - paddle.eye(weight.shape[1], dtype=weight.dtype))
        .square()
        .mean()
    )
