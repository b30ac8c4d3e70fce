"""Qwen3-MoE and DeepSeek-V3 cannot be imported without paddlefleet_ops, which needs CUDA.

``fused_a2a.py`` imports that package to ask whether DeepEP is there, without asking whether the package
is.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/fused_a2a.py:17 `from paddlefleet_ops import is_deep_ep_available`
:error: ModuleNotFoundError: No module named 'paddlefleet_ops'
:should print:
    DeepEP is there: False
:change: Set ``HAVE_DEEP_EP = False`` if the import fails with ImportError.
:workaround: llm_npu.patches.paddleformers.without_cuda.supply_paddlefleet_ops
"""

from paddleformers.transformers import fused_a2a

print("DeepEP is there:", fused_a2a.HAVE_DEEP_EP)
