"""Expert outputs summed back into the order of the tokens."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int, top_k: int) -> Cost:
    """Forward reads K rows per token and writes one. Backward reads all of them and writes K gradients."""
    return Cost(tokens * hidden * (1 + top_k + (1 + 2 * top_k if backward else 0)) * item_size)


OPERATORS = (Operator("moe_token_unpermute", __name__, cost, switch="use_fused_moe"),)
