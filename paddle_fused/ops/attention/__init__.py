"""Attention with masks by what they mean."""

from paddle_fused.registry import Operator

OPERATORS = (
    Operator(
        "flash_attention",
        __name__,
        switch="use_npu_fusion_attention",
        rules=("contract", "mask_contract"),
    ),
)
