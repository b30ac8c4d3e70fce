"""LoRA's merge and unmerge change the weights.

``unmerge`` subtracts what ``merge`` added, and both round in the weights' dtype. After an evaluation
with merged weights, training goes on with others; in bfloat16 they differ in most elements.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/peft/lora/lora_layers.py:261 `new_weight = self.weight - delta_weight`
:prints:
    the weights are as before: False
:should print:
    the weights are as before: True
:change:
    Keep the weight in ``merge`` (on the host, if memory is short), and put it back in ``unmerge``; add
    in float32 and round once.
:workaround: llm_npu/models/lora.py
"""

import paddle
from paddlenlp.peft.lora.lora_layers import LoRALinear

layer = LoRALinear(64, 64, r=4, lora_alpha=4, bias_attr=False)
layer.lora_B.set_value(paddle.randn(layer.lora_B.shape))
before = layer.weight.clone()
layer.merge()
layer.unmerge()
print("the weights are as before:", bool((layer.weight == before).all()))
