"""The default attention, "flashmask", ignores the mask of padding in silence.

The model makes a dense mask where a batch has padding, and hands it down as ``attention_mask``.
``flashmask_attention_forward`` has no such argument; its ``**kwargs`` take it. With padding on the left,
as in generation, logits differ from those of the attention "eager".

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/nn/attention/flashmask_attention.py:24 `def flashmask_attention_forward(`
:prints:
    flashmask takes attention_mask: False
    eager takes attention_mask: True
:should print:
    flashmask takes attention_mask: True
    eager takes attention_mask: True
:change:
    Turn the padding into row indices, or run the attention "eager" if a mask comes without row indices.
:workaround: llm_npu.patches.paddleformers.masks.fix_flashmask_padding
"""

import inspect

from paddleformers.nn.attention.interface import AttentionInterface

for name in ("flashmask", "eager"):
    parameters = inspect.signature(AttentionInterface()[name]).parameters
    print(f"{name} takes attention_mask:", "attention_mask" in parameters)
