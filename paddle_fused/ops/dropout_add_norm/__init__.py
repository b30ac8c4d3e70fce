"""Dropout, residual addition, and LayerNorm or RMSNorm."""

from paddle_fused.registry import Cost, Operator


def cost(item_size: int, backward: bool, tokens: int, hidden: int) -> Cost:
    """Forward reads x0 and residual and writes out, pre and one byte of mask per element.

    Backward reads pre, the mask and both output gradients, and writes the gradients of x0 and residual.
    """
    return Cost(tokens * hidden * ((9 if backward else 4) * item_size + (2 if backward else 1)))


OPERATORS = (
    Operator("dropout_add_layer_norm", __name__, cost, switch="use_fused_dropout_add_layer_norm"),
    Operator("dropout_add_rms_norm", __name__, cost, switch="use_fused_add_rms_norm"),
)
