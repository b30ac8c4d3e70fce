"""Cross-entropy of a linear layer without materialized logits."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int, vocabulary: int) -> Cost:
    """One matmul forward, two of the same size backward. The full logits are never in memory."""
    sizes = tokens * hidden + hidden * vocabulary
    times = 3 if backward else 1
    return Cost(sizes * item_size * times, 2 * tokens * hidden * vocabulary * times)


OPERATORS = (
    Operator(
        "linear_cross_entropy",
        __name__,
        cost,
        switch="use_fused_linear_cross_entropy",
        contract_modules=(),
    ),
)
