"""A mixture-of-experts layer."""

from paddle_fused.registry import Cost, Operator


def cost(
    item_size: int, backward: bool, tokens: int, hidden: int, inner: int, experts: int, top_k: int
) -> Cost:
    """Each of the T K rows is multiplied by [H, 2I] and [I, H], 6 T K H I forward; backward twice that.

    Bytes: the weights, and the rows before and after each product.
    """
    rows = tokens * top_k
    sizes = 3 * experts * hidden * inner + rows * (2 * hidden + 4 * inner)
    times = 3 if backward else 1
    return Cost(sizes * item_size * times, 6 * rows * hidden * inner * times)


OPERATORS = (Operator("fused_moe", __name__, cost, switch="use_fused_moe", contract_modules=()),)
