"""Mistral ignores sliding_window.

Its mask for the window, ``_make_sliding_window_causal_mask``, is an ordinary causal mask:
``paddle.tril`` without the band's lower end. Logits of texts longer than the window differ from
transformers'.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/mistral/modeling.py:65 `mask = paddle.tril(tensor, diagonal=0)`
:prints:
    a token sees beyond its window: True
:should print:
    a token sees beyond its window: False
:change:
    ``mask = paddle.triu(mask, diagonal=-config.sliding_window + 1)``, as in transformers, with the
    configuration handed down.
:workaround: llm_npu/config/model_checks.py
"""

import paddle
from paddlenlp.transformers import MistralConfig, MistralForCausalLM

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
model = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=2))
model.eval()
first_logits, other = (model(paddle.to_tensor([[first, 2, 3, 4]]))[0][0, -1] for first in (1, 5))
print("a token sees beyond its window:", bool((first_logits != other).any()))
