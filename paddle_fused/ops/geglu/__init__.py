"""GeGLU."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int) -> Cost:
    """Forward reads x and y and writes out; backward reads x, y and dout and writes dx and dy."""
    return Cost(tokens * hidden * item_size * (8 if backward else 3))


OPERATORS = (Operator("geglu", __name__, cost, switch="use_fused_geglu"),)
