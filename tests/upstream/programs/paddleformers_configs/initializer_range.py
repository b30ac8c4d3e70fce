"""initializer_range of a configuration is ignored.

``_init_weights`` does nothing, and layers keep the initialisation of their own (Xavier), so a new model
begins with a loss above the logarithm of its vocabulary.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/model_utils.py:1311 `def _init_weights(self, layer):`
:prints:
    standard deviation of the head: 0.09 instead of 0.02
:should print:
    standard deviation of the head: 0.02 instead of 0.02
:change:
    Draw normal(0, ``initializer_range``) for linear layers, embeddings and the head in
    ``_init_weights``, as transformers does.
:workaround: llm_npu.models.paddleformers.adapter.draw_weights
"""

import paddle
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

paddle.seed(0)
sizes = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 8192}
config = LlamaConfig(**sizes, initializer_range=0.02, tie_word_embeddings=False)
head = LlamaForCausalLM(config).lm_head.weight
print("standard deviation of the head:", round(float(head.std()), 2), "instead of 0.02")
