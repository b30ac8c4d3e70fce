"""Llama ignores rope_scaling whose kind is under the key "type".

config.json of many models, and transformers' older ones, write {"type": "linear", "factor": 2.0}. Llama
looks for "rope_type" with the value "llama3" only, and otherwise for fields of PaddleNLP's own, so the
model runs without scaling and without a warning.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/llama/modeling.py:881 `and self.config.rope_scaling.get("rope_type", None) ==`
:prints:
    {'type': 'linear', 'factor': 2.0} LlamaRotaryEmbedding
    {'rope_type': 'linear', 'factor': 2.0} LlamaRotaryEmbedding
:should print:
    {'type': 'linear', 'factor': 2.0} LlamaLinearScalingRotaryEmbedding
    {'rope_type': 'linear', 'factor': 2.0} LlamaLinearScalingRotaryEmbedding
:change:
    Read ``rope_scaling.get("rope_type", rope_scaling.get("type"))``, choose among all kinds by it, and
    raise a ValueError for an unknown one.
:workaround: llm_npu.models.settings.rotary.as_library
"""

from paddlenlp.transformers import LlamaConfig
from paddlenlp.transformers.llama.modeling import LlamaAttention

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
for key in ("type", "rope_type"):
    scaling = {key: "linear", "factor": 2.0}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, rope_scaling=scaling)
    print(scaling, type(LlamaAttention(config).rotary_emb).__name__)
