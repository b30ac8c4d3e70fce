"""The experts of PaddleNLP's mixtures, one layer each, on the tokens that chose them.

T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import paddle

import paddle_fused
from paddle_fused import paddle_release


def refuses(experts) -> str | None:
    """The reason why these experts cannot get their tokens here, or None."""
    for number, expert in enumerate(experts):
        if expert is None:
            return f"experts.{number} is in another process (expert parallel)"
        if expert.tensor_parallel_degree > 1:
            degree = expert.tensor_parallel_degree
            return f"tensor_parallel_degree is {degree}: each process has a part of every expert"
    return None


def mixture(experts, tokens, probs, indices):
    """out[t] = sum over k < K of probs[t, k] * expert(tokens[t]) with the expert indices[t, k].

    The tokens are permuted into the order of their experts, and each expert multiplies its rows by its own
    weights. (``paddle_fused.fused_moe`` wants those of all experts as one tensor: a copy of every weight in
    each forward pass and of every gradient in each backward pass, which takes as long as the products.)
    An expert without tokens gets a gradient of zeros.

    Args:
        experts: E layers with a gate, an up and a down projection of any kind (LoRA, for one).
        tokens: [T, H].
        probs: [T, K].
        indices: [T, K] integers.

    Returns:
        [T, H], the dtype that the experts compute in.
    """
    experts = list(experts)
    rows, sorted_indices = paddle_fused.moe_token_permute(tokens, indices)
    counts = paddle_release.counts_of(indices, len(experts))
    if paddle.in_dynamic_mode():
        sizes = counts.tolist()
        learns = paddle.is_grad_enabled()
    else:  # a captured program learns the sizes when it runs
        sizes = paddle.split(counts, len(experts))
        learns = True
    made = []
    for expert, part in zip(experts, paddle.split(rows, sizes)):  # noqa: B905 (to_static knows no strict)
        if learns or part.shape[0] > 0:
            made.append(_expert(expert, part))
    return paddle_fused.moe_token_unpermute(paddle.concat(made), sorted_indices, probs)


def _expert(expert, rows):
    """down(silu(gate(rows)) * up(rows)), under PaddleNLP's names for these projections."""
    if hasattr(expert, "gate_up_fused_proj"):
        return expert.down_proj(paddle_fused.swiglu(expert.gate_up_fused_proj(rows)))
    if hasattr(expert, "w1"):
        return expert.w2(paddle_fused.swiglu(expert.w1(rows), expert.w3(rows)))
    return expert.down_proj(paddle_fused.swiglu(expert.gate_proj(rows), expert.up_proj(rows)))
