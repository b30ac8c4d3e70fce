"""LoRA trains layers of the parts of a vision-language model that ``freeze_config`` freezes.

``get_multimodel_lora_target_modules`` drops a pattern of LoRA if it contains the prefix of a frozen part. The
patterns of Qwen2.5-VL, such as ``.*attn.qkv.*``, contain none, so ``freeze_config`` has no effect. In
PaddleOCR-VL, ``.*model.*q_proj.*`` also matches ``visual.vision_model``, so the queries, keys and values of a
frozen vision tower are trained.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/cli/utils/mllm_utils.py:112 `if prefix in tm:`
:prints:
    trained layers of the vision tower and the projector: 7
:should print:
    trained layers of the vision tower and the projector: 0
:change: Match the prefixes with the names of the layers that the patterns match, not with the patterns.
:workaround: llm_npu.patches.paddleformers.vision.fix_lora_of_frozen_parts
"""

import paddle
from paddleformers.cli.utils.llm_utils import get_lora_target_modules
from paddleformers.cli.utils.mllm_utils import get_multimodel_lora_target_modules
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.transformers import Qwen2_5_VLConfig
from paddleformers.transformers.qwen2_5_vl.modeling import Qwen2_5_VLForConditionalGeneration

paddle.set_device("cpu")
sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 32}
text = {**sizes, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
text["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 1, 1]}
vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
base = Qwen2_5_VLForConditionalGeneration(config)
patterns = get_lora_target_modules(base)
patterns = get_multimodel_lora_target_modules(base, patterns, "freeze_vision freeze_aligner")
model = LoRAModel(base, LoRAConfig(target_modules=patterns, r=2, dtype="float32"))
layers = [name for name, _ in model.model.named_parameters() if "visual" in name and name.endswith("lora_A")]
print("trained layers of the vision tower and the projector:", len(layers))
