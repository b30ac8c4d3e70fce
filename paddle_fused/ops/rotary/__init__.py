"""Rotary position embedding."""

from paddle_fused.registry import Operator

OPERATORS = (
    Operator("rotary_mul", __name__),
    Operator("apply_rotary", __name__, switch="use_fused_rope"),
)
