"""A mixture of experts."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("fused_moe", __name__, switch="use_fused_moe", rules=()),)
