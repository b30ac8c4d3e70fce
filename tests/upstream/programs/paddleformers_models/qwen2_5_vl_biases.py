"""Qwen2.5-VL cannot load a checkpoint that it has saved.

Its mapping to the names of a checkpoint splits ``qkv_proj.bias`` into three biases, and renames weights only.
The biases are stored as ``model.language_model.layers...``, and read as ``model.layers...``.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/qwen2_5_vl/modeling.py:385 `for x in ("q", "k", "v")`
:error: ValueError: ...qkv_proj.bias should be assigned before!...
:should print:
    loaded
:change: Rename the biases as the weights: ``self_attn.{x}_proj.bias -> model.layers...{x}_proj.bias``.
:workaround: llm_npu.patches.paddleformers.checkpoints.fix_qwen2_5_vl_biases
"""

import tempfile

import paddle
from paddleformers.transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

paddle.set_device("cpu")
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
rope = {"type": "mrope", "mrope_section": [2, 1, 1]}
text = {**sizes, "num_hidden_layers": 1, "vocab_size": 32, "rope_scaling": rope}
vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 2}
config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "out_hidden_size": 16})
folder = tempfile.mkdtemp()
Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder, save_to_hf=True)
Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, load_checkpoint_format="flex_checkpoint")
print("loaded")
