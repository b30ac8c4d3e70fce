"""Feed-forward layers, and the experts of mixtures on the tokens that chose them.

T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import paddle

import paddle_fused
from llm_npu.core import auto_cast
from llm_npu.surgery.fusable_layers import RECORDS, is_plain
from paddle_fused import contracts, paddle_release

# (gate, up, down) of the families, and the projections that hold gate and up.
PROJECTIONS = tuple(dict.fromkeys(family.projections for family in RECORDS))
BOTH = ("gate_up_fused_proj", "up_gate_proj")


def unsupported_reason(experts) -> str | None:
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
    weights: in one grouped product for each projection if all experts are plain linear layers, otherwise one
    expert after the other. An expert without tokens gets a gradient of zeros.

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
    weights = grouped_weights(experts)
    made = _one_by_one(experts, rows, counts) if weights is None else _grouped(weights, rows, counts)
    return paddle_fused.moe_token_unpermute(made, sorted_indices, probs)


@paddle.jit.not_to_static
def grouped_weights(experts) -> tuple | None:
    """The weights of all experts' gate, up and down projections, each a list; None instead of up as above.

    None if the projections are not plain linear layers that ``grouped_matmul`` replaces.
    """
    if None in experts or len(experts) > contracts.limit("grouped_matmul.list"):
        return None
    by_projection = list(zip(*map(projections, experts), strict=True))
    if not all(layer is None or _is_product(layer) for layers in by_projection for layer in layers):
        return None
    gates, ups, downs = ([layer and layer.weight for layer in layers] for layers in by_projection)
    return gates, None if None in ups else ups, downs


def _is_product(layer) -> bool:
    return is_plain(layer, paddle.nn.Linear) and layer.bias is None


@paddle.jit.not_to_static
def _grouped(weights, rows, counts):
    """The experts' results for their rows, in three products."""
    gates, ups, downs = weights
    sizes = counts.tolist() if paddle.in_dynamic_mode() else counts

    def product(x, matrices):
        x, *matrices = auto_cast.cast_inputs(x, *matrices)
        return paddle_fused.grouped_matmul(x, matrices, sizes, 1)

    gate = product(rows, gates)
    inner = paddle_fused.swiglu(gate) if ups is None else paddle_fused.swiglu(gate, product(rows, ups))
    return product(inner, downs)


def _one_by_one(experts, rows, counts):
    """The experts' results for their rows, each by its own layers."""
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
    return paddle.concat(made)


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
