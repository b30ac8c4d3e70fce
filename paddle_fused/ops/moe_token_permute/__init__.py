"""Tokens permuted into the order of their experts."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int, top_k: int) -> Cost:
    """Every token is read once and written K times, and the reverse in backward."""
    return Cost(tokens * hidden * (1 + top_k) * item_size * (2 if backward else 1))


OPERATORS = (Operator("moe_token_permute", __name__, cost, switch="use_fused_moe"),)
