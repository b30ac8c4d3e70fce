"""Feed-forward layers, and the experts of mixtures on the tokens that chose them.

T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import paddle

import paddle_fused
from llm_npu.surgery.sites import RECORDS
from paddle_fused import paddle_release

# (gate, up, down) of the families, and the projections that hold gate and up.
PROJECTIONS = tuple(dict.fromkeys(family.projections for family in RECORDS))
BOTH = ("gate_up_fused_proj", "up_gate_proj")


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
        experts: E layers with a gate, an up and a down projection of any kind (LoRA, for one); None gives
            zeros, for an expert of another process.
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
        if expert is None:
            made.append(paddle.zeros_like(part))
        elif part.shape[0] == 0 and getattr(expert, "tensor_parallel", False):
            # Its processes meet in collectives, which need a row; its gradient is zero.
            made.append(feed_forward(expert, paddle.zeros([1, part.shape[1]], part.dtype))[:0])
        elif learns or part.shape[0] > 0:
            made.append(feed_forward(expert, part))
    if None in experts:
        made = [each.astype(rows.dtype) for each in made]  # AMP computes products in another than zeros have
    return paddle_fused.moe_token_unpermute(paddle.concat(made), sorted_indices, probs)


def feed_forward(self, x):
    """down(silu(gate(x)) * up(x)), the forward of a feed-forward layer ``self``."""
    gate, up, down = projections(self)
    return down(paddle_fused.swiglu(gate(x)) if up is None else paddle_fused.swiglu(gate(x), up(x)))


@paddle.jit.not_to_static
def projections(layer) -> tuple:
    """The gate, up and down projections of a feed-forward layer; up is None where gate holds both."""
    gate, up, down = next(names for names in PROJECTIONS if hasattr(layer, names[2]))
    if both := next((name for name in BOTH if hasattr(layer, name)), None):
        return getattr(layer, both), None, getattr(layer, down)
    return getattr(layer, gate), getattr(layer, up), getattr(layer, down)
