"""The attention "eager" is not causal in pipeline stages.

A model makes a causal mask for "eager". Pipeline stages have no model: ``EmbeddingPipe`` passes the given
mask on, or none. Without a mask, "sdpa" and "flashmask" are causal, but "eager" hides nothing, so a model
trained in a pipeline sees the tokens that it predicts. Nothing reports it.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/nn/attention/eager_attention.py:62 `if attention_mask is not None:`
    paddleformers/nn/attention/sdpa_attention.py:42 `is_causal = query.shape[1] > 1 and attention_mask is No`
:prints:
    the first token's weight of the last one: eager 0.25, sdpa 0.0
:should print:
    the first token's weight of the last one: eager 0.0, sdpa 0.0
:change:
    Without a mask, row indices and ``is_causal``, decide as ``sdpa_attention_forward`` does, and add a
    triangle of the lowest number if the result is true.
:workaround: llm_npu.patches.paddleformers.masks.fix_eager_attention_in_stages
"""

import paddle
from paddleformers.nn.attention.interface import ALL_ATTENTION_FUNCTIONS

query, value = paddle.zeros([1, 1, 4, 8]), paddle.zeros([1, 1, 4, 8])
value[:, :, -1] = 1.0
largest = {}
for name in ("eager", "sdpa"):
    out, _ = ALL_ATTENTION_FUNCTIONS[name](paddle.nn.Layer(), query, query, value, scaling=1.0)
    largest[name] = round(float(out[0, 0].max()), 2)
print("the first token's weight of the last one:", ", ".join(f"{name} {x}" for name, x in largest.items()))
