"""AdamW."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("fused_adamw", __name__, "FusedAdamW"),)
