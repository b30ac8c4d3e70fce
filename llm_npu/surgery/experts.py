"""The experts of PaddleNLP's mixtures, one layer each, stacked as ``paddle_fused.fused_moe`` wants them.

T tokens, H hidden, I intermediate, E experts, K experts of a token.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

import paddle_fused

# What PaddleNLP calls the matrices of an expert: the gate, what the gate multiplies, and the way back.
_NAMES = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
_FUSED = "gate_up_fused_proj"  # gate and up side by side, the gate in the first I columns


def refuses(experts) -> str | None:
    """The reason why these experts cannot be stacked, or None."""
    for number, expert in enumerate(experts):
        if expert is None:
            return f"experts.{number} is in another process (expert parallel)"
        if expert.tensor_parallel_degree > 1:
            degree = expert.tensor_parallel_degree
            return f"tensor_parallel_degree is {degree}: each process has a part of every expert"
        for name in _matrices(expert):
            reason = _refuses_matrix(expert, name)
            if reason is not None:
                return f"experts.{number}.{name} {reason}"
    return None


def mixture(experts, tokens, probs, indices):
    """out[t] = sum over k < K of probs[t, k] * expert(tokens[t]) with the expert indices[t, k].

    An expert without tokens gets a gradient of zeros, as the experts of a layer with capacity do.

    Args:
        experts: E layers with a gate, an up and a down projection; none has a bias.
        tokens: [T, H]. Its dtype is the one that the products are computed in.
        probs: [T, K].
        indices: [T, K] integers.

    Returns:
        [T, H], tokens' dtype.

    Raises:
        ValueError: when an expert is no longer what ``refuses`` has accepted.
    """
    experts = list(experts)
    if paddle.in_dynamic_mode() and not paddle.is_grad_enabled() and indices.size > 0:
        # A token of generation needs K experts; copying the weights of all E would take longer than the rest.
        used, among_used = np.unique(indices.numpy(), return_inverse=True)
        indices = paddle.to_tensor(among_used.reshape(probs.shape), place=indices.place)
        experts = [experts[number] for number in used]
    both, down = _stacked(experts)
    return paddle_fused.fused_moe(
        tokens, (probs, indices), both.astype(tokens.dtype), down.astype(tokens.dtype)
    )


def _stacked(experts) -> tuple:
    """The weights [E, H, 2I] of gates and ups, and [E, I, H] of downs."""
    *both, down = ([_weight(expert, name) for expert in experts] for name in _matrices(experts[0]))
    both = [paddle.stack(weights) for weights in both]
    return both[0] if len(both) == 1 else paddle.concat(both, axis=-1), paddle.stack(down)


def _matrices(expert) -> tuple[str, ...]:
    """The names of an expert's matrices: gate and up, or both as one, and down."""
    if hasattr(expert, _FUSED):
        return _FUSED, "down_proj"
    return next(names for names in _NAMES if hasattr(expert, names[0]))


def _refuses_matrix(expert, name: str) -> str | None:
    layer = getattr(expert, name)
    if type(layer) is not nn.Linear:
        return f"is a {type(layer).__name__}, whose product may be more than one with its weight"
    return None if layer.bias is None else "has a bias"


def _weight(expert, name: str):
    reason = _refuses_matrix(expert, name)
    if reason is not None:  # LoRA, for one, puts other layers into a model
        raise ValueError(
            f"fused MoE: {name} of an expert {reason}; the model has changed since its kernels were applied. "
            "Call remove_fused_kernels(model) before the change and apply_fused_kernels(model) after it."
        )
    return getattr(expert, name).weight
