"""Products of groups of rows, each with its own matrix."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("grouped_matmul", __name__, switch="use_fused_moe"),)
