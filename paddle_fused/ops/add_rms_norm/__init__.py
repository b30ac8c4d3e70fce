"""Residual addition and RMSNorm. Returns both results."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int) -> Cost:
    """Forward reads x and residual and writes both outputs.

    Backward reads the sum and both output gradients and writes one gradient, shared by x and residual.
    """
    return Cost(tokens * hidden * item_size * (8 if backward else 4))


OPERATORS = (Operator("add_rms_norm", __name__, cost, switch="use_fused_add_rms_norm"),)
