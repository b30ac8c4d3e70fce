"""RMSNorm."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int) -> Cost:
    """Forward reads x and writes out; backward reads x and dout and writes dx. Weight and rstd are small."""
    return Cost(tokens * hidden * item_size * (5 if backward else 2))


OPERATORS = (Operator("rms_norm", __name__, cost, switch="use_fused_rms_norm"),)
