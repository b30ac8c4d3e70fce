"""The fused operators under the names of torch_npu and MindSpeed, with their argument order."""

from .attention import npu_fusion_attention

__all__ = ["npu_fusion_attention"]
