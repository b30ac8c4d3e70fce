"""The fused operators with the names and argument order of torch_npu and MindSpeed."""

from .adamw import npu_apply_fused_adamw_v2
from .attention import npu_fusion_attention
from .layer import (
    npu_dropout_add_layer_norm,
    npu_dropout_add_rms_norm,
    npu_geglu,
    npu_rms_norm,
    npu_rotary_mul,
    npu_swiglu,
)
from .moe import npu_grouped_matmul, npu_moe_token_permute, npu_moe_token_unpermute

__all__ = [
    "npu_apply_fused_adamw_v2",
    "npu_dropout_add_layer_norm",
    "npu_dropout_add_rms_norm",
    "npu_fusion_attention",
    "npu_geglu",
    "npu_grouped_matmul",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
]
