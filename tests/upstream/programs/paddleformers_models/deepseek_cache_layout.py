"""DeepSeek-V3's cache counts heads instead of tokens, so generation with a cache is wrong.

The attention gives ``past_key_values.update`` keys of layout [batch, tokens, heads, size].
``DynamicCache`` joins along the axis -2, and takes its length for that of the text. All other models
transpose first.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:735 `key_states, value_states = past_key_values`
:prints:
    3 tokens are 4 in the cache
:should print:
    3 tokens are 3 in the cache
:change: Update the cache after the transposition in lines 738 and following.
:workaround: none
"""

import sys
import types

import paddle

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
sys.modules["paddlefleet_ops"] = fleet_ops

from paddleformers.transformers import DeepseekV3Config  # noqa: E402
from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3ForCausalLM  # noqa: E402

sizes = {"hidden_size": 32, "vocab_size": 32, "num_hidden_layers": 1, "intermediate_size": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8}
heads |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
dense = {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "fuse_rms_norm": False}
scaling = {"type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
scaling |= {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **heads, **dense, rope_scaling=scaling))
model.eval()
cache = model(paddle.to_tensor([[1, 2, 3]]), use_cache=True, return_dict=True).past_key_values
print("3 tokens are", cache.get_seq_length(), "in the cache")
