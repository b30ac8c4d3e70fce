"""The fused operators under the names of torch_npu and MindSpeed, with their argument order."""

from .attention import npu_fusion_attention
from .moe import npu_grouped_matmul, npu_moe_token_permute, npu_moe_token_unpermute

__all__ = [
    "npu_fusion_attention",
    "npu_grouped_matmul",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
]
