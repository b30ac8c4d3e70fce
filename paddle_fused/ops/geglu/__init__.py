"""GeGLU."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("geglu", __name__),)
