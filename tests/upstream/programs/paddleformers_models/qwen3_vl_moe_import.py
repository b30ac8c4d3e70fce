"""Qwen3-VL-MoE cannot be imported without paddlefleet, although it has classes in plain Paddle.

Its module imports the model of ``qwen3_vl.modeling_fleet`` at its head. Only its classes for paddlefleet use
it; ``Qwen3VLMoeForConditionalGenerationDeprecated`` does not. paddlefleet is not on PyPI, and needs CUDA.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/qwen3_vl_moe/modeling.py:51 `from ..qwen3_vl.modeling_fleet import`
:error: ModuleNotFoundError: No module named 'paddlefleet'
:should print:
    Qwen3VLMoeForConditionalGenerationDeprecated
:change:
    Import the module only if paddlefleet is there (``if is_paddlefleet_available()``), and without it let the
    plain classes have the names without "Deprecated".
:workaround: llm_npu.patches.paddleformers.without_cuda.supply_vision_provider
"""

from paddleformers.transformers.qwen3_vl_moe.modeling import Qwen3VLMoeForConditionalGenerationDeprecated

print(Qwen3VLMoeForConditionalGenerationDeprecated.__name__)
