"""Qwen3-VL cannot be built without paddlefleet, although it has a class in plain Paddle.

``AutoModelForConditionalGeneration`` takes ``Qwen3VLForConditionalGeneration``, which imports paddlefleet.
The plain class is called ``Qwen3VLForConditionalGenerationDeprecated``. paddlefleet is not on PyPI, and needs
CUDA.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/qwen3_vl/modeling.py:66 `from .modeling_fleet import Qwen3VLForConditionalGen`
:error: ModuleNotFoundError: No module named 'paddlefleet'
:should print:
    Qwen3VLForConditionalGeneration
:change: Without paddlefleet, let the plain classes have the names without "Deprecated".
:workaround: llm_npu.patches.paddleformers.without_cuda.use_plain_classes
"""

from paddleformers.transformers import AutoModelForConditionalGeneration, Qwen3VLConfig

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
rope = {"rope_type": "default", "mrope_section": [2, 1, 1]}
text = {**sizes, "num_hidden_layers": 1, "vocab_size": 32, "head_dim": 8, "rope_scaling": rope}
vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 2}
vision |= {"out_hidden_size": 16, "deepstack_visual_indexes": []}
config = Qwen3VLConfig(text_config=text, vision_config=vision)
config.architectures = ["Qwen3VLForConditionalGeneration"]
print(type(AutoModelForConditionalGeneration.from_config(config)).__name__)
