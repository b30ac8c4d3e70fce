"""RMSNorm of a sum, which it also returns."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("add_rms_norm", __name__),)
