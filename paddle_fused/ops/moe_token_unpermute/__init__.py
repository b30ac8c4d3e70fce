"""Tokens back from the order of their experts."""

from paddle_fused.registry import Operator

OPERATORS = (Operator("moe_token_unpermute", __name__, switch="use_fused_moe"),)
