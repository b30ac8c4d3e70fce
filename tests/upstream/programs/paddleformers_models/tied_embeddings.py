"""A Llama whose config.json does not say tie_word_embeddings is tied, and ignores its lm_head.

``PretrainedConfig`` takes True for a missing field. Transformers' LlamaConfig takes False, so
checkpoints of many models, whose config.json leaves the field out, are read wrongly.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/configuration_utils.py:859 `self.tie_word_embeddings = kwargs.pop`
:prints:
    True
:should print:
    False
:change: Give LlamaConfig an argument ``tie_word_embeddings=False``, and pass it to the base class.
:workaround: llm_npu/models/paddleformers/families.py
"""

from paddleformers.transformers import LlamaConfig

print(LlamaConfig().tie_word_embeddings)
