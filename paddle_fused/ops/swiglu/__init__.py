"""SwiGLU."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("swiglu", __name__, switch="use_fused_swiglu"),)
