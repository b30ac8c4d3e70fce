"""DeepSeek-V3 cannot be built without rope_scaling.

The attention reads ``rope_parameters["factor"]``, which the parameters of an unscaled rotary embedding
do not have.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:661 `scaling_factor = self.config.rope_parameters`
:error: KeyError: 'factor'
:should print:
    built
:change: ``rope_parameters.get("factor", 1.0)``.
:workaround: llm_npu.models.settings.rotary.as_library
"""

import sys
import types

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
sys.modules["paddlefleet_ops"] = fleet_ops

from paddleformers.transformers import DeepseekV3Config  # noqa: E402
from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3Attention  # noqa: E402

sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8}
heads = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
DeepseekV3Attention(DeepseekV3Config(**sizes, **heads), layer_idx=0)
print("built")
