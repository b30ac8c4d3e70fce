"""Dropout, a sum and a norm of it."""

from paddle_fused.registry import Operator

OPERATORS = (
    Operator("dropout_add_layer_norm", __name__),
    Operator("dropout_add_rms_norm", __name__),
)
