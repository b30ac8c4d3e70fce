"""ERNIE-4.5 ignores rope_scaling.

The configuration has no parameter of this name and keeps it as an attribute that nothing reads;
``rope_parameters`` stay those of an unscaled rotary embedding. Qwen3 and Llama take both names. A model
whose config.json has ``rope_scaling`` runs with other positions, and nothing reports it.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/ernie4_5/configuration.py:173 `standardize_rope_params(self, rope_theta`
:prints:
    rope_scaling: 1.0
    rope_parameters: 0.25
:should print:
    rope_scaling: 0.25
    rope_parameters: 0.25
:change: Take ``rope_scaling`` and assign it to ``rope_parameters`` first, as ``Qwen3Config`` does.
:workaround: llm_npu.models.settings.rotary.as_library
"""

from paddleformers.transformers import Ernie4_5Config
from paddleformers.transformers.ernie4_5.modeling import Ernie4_5RotaryEmbedding

for name in ("rope_scaling", "rope_parameters"):
    scaling = {name: {"rope_type": "linear", "factor": 4.0}}
    config = Ernie4_5Config(hidden_size=16, num_attention_heads=2, head_dim=8, **scaling)
    print(f"{name}: {float(Ernie4_5RotaryEmbedding(config).inv_freq[0])}")
