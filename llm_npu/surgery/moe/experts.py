"""Feed-forward layers, and experts applied to their routed tokens.

T tokens, H hidden, E experts, K experts per token.
"""

from __future__ import annotations

import paddle

import paddle_fused
from llm_npu.core import auto_cast
from llm_npu.models.family import Family
from llm_npu.surgery.fusable_layers import FAMILIES, is_plain
from paddle_fused import contracts, paddle_release

# The families' names of (gate, up, down), and of a projection with both gate and up.
PROJECTIONS = tuple(
    dict.fromkeys(
        family.projections
        for families in FAMILIES.values()
        for family in families
        if isinstance(family, Family)
    )
)
BOTH = ("gate_up_fused_proj", "up_gate_proj")


def unsupported_reason(experts) -> str | None:
    """The reason why these experts cannot be fused; None if they can."""
    for number, expert in enumerate(experts):
        if expert is None:
            return f"experts.{number} belongs to another process (expert parallelism)"
        if expert.tensor_parallel_degree > 1:
            degree = expert.tensor_parallel_degree
            return f"tensor_parallel_degree is {degree}: every expert is sharded"
    return None


def routed_experts(experts, tokens, probs, indices):
    """out[t] = sum over k < K of probs[t, k] * expert(tokens[t]) with the expert indices[t, k].

    Permutes the tokens by expert and runs each expert on its rows: in a grouped matmul per projection if all
    experts are plain linear layers, otherwise one expert after the other. An expert without tokens gets a
    zero gradient.

    Args:
        experts: E layers with gate, up and down projections of any kind, including LoRA; None for an expert
        on another process, which contributes zeros. tokens: [T, H]. probs: [T, K]. indices: [T, K] integers;
        E for a dropped choice, which contributes zeros.

    Returns:
        [T, H] in the compute dtype of the experts.
    """
    experts = list(experts)
    sizes = counts = paddle_release.counts_of(indices, len(experts))
    dropped = 0
    if paddle.in_dynamic_mode():
        sizes = counts.tolist()
        dropped = indices.size - sum(sizes)
    rows, sorted_indices = paddle_fused.moe_token_permute(tokens, indices, -dropped)
    return paddle_fused.moe_token_unpermute(results_of(experts, rows, sizes), sorted_indices, probs)


def results_of(experts: list, rows, sizes):
    """The results of ``experts`` for rows [M, H], sorted by expert.

    Args:
        sizes: the number of rows of each expert: a list, or a tensor [E] of a captured program.
    """
    weights = grouped_weights(experts)
    return _one_by_one(experts, rows, sizes) if weights is None else _grouped(weights, rows, sizes)


@paddle.jit.not_to_static
def grouped_weights(experts) -> tuple | None:
    """Lists of all experts' gate, up and down weights; up is None if gate holds both.

    None if any projection is not a plain linear layer that ``grouped_matmul`` can replace.
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
def _grouped(weights, rows, sizes):
    """The experts' results for their rows, in three grouped matmuls."""
    gates, ups, downs = weights

    def product(x, matrices):
        x, *matrices = auto_cast.cast_inputs(x, *matrices)
        return paddle_fused.grouped_matmul(x, matrices, sizes, 1)

    gate = product(rows, gates)
    inner = paddle_fused.swiglu(gate) if ups is None else paddle_fused.swiglu(gate, product(rows, ups))
    return product(inner, downs)


def _one_by_one(experts, rows, sizes):
    """The experts' results for their rows, one expert after the other."""
    learns = True
    if paddle.in_dynamic_mode():
        learns = paddle.is_grad_enabled()
    else:  # a captured program computes the sizes when it runs
        sizes = paddle.split(sizes, len(experts))
    results = []
    for expert, part in zip(experts, paddle.split(rows, sizes)):  # noqa: B905 (to_static knows no strict)
        if expert is None:
            results.append(paddle.zeros_like(part))
        elif part.shape[0] == 0 and getattr(expert, "tensor_parallel", False):
            # The expert has collectives, so every process must run it on at least one row; its gradient is 0.
            results.append(feed_forward(expert, paddle.zeros([1, part.shape[1]], part.dtype))[:0])
        elif learns or part.shape[0] > 0:
            results.append(feed_forward(expert, part))
    if None in experts:
        results = [result.astype(rows.dtype) for result in results]  # AMP matmuls and zeros differ in dtype
    return paddle.concat(results)


def feed_forward(self, x):
    """down(silu(gate(x)) * up(x)), the forward of the feed-forward layer ``self``."""
    gate, up, down = projections(self)
    return down(paddle_fused.swiglu(gate(x)) if up is None else paddle_fused.swiglu(gate(x), up(x)))


@paddle.jit.not_to_static
def projections(layer) -> tuple:
    """The gate, up and down projections of a feed-forward layer; up is None if gate holds both."""
    gate, up, down = next(names for names in PROJECTIONS if hasattr(layer, names[2]))
    if both := next((name for name in BOTH if hasattr(layer, name)), None):
        return getattr(layer, both), None, getattr(layer, down)
    return getattr(layer, gate), getattr(layer, up), getattr(layer, down)
