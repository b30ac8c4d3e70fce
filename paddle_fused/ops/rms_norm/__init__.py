"""RMSNorm."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("rms_norm", __name__, switch="use_fused_rms_norm"),)
