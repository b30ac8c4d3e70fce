"""Qwen3-MoE cannot be built with head_dim null in its config.json.

The attention takes the default only where the configuration has no such attribute. The rotary embedding of
the same file also takes it for ``None``.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/qwen3_moe/modeling.py:126 `self.head_dim = getattr(config, "head_dim"`
    paddleformers/transformers/qwen3_moe/modeling.py:699 `dim = getattr(config, "head_dim", None) or`
:error: TypeError: unsupported operand type(s) for ** or pow(): 'NoneType' and 'float'
:should print:
    head size: 8
:change: In the attention, too: ``getattr(config, "head_dim", None) or ...``.
:workaround: llm_npu.models.settings.fields.as_library
"""

import sys
import types

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
provider = types.ModuleType("paddleformers.transformers.gpt_provider")
provider.GPTModel, provider.GPTModelProvider = type("GPTModel", (), {}), type("GPTModelProvider", (), {})
sys.modules |= {"paddlefleet_ops": fleet_ops, provider.__name__: provider}

from paddleformers.transformers import Qwen3MoeConfig  # noqa: E402
from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeAttention  # noqa: E402

config = Qwen3MoeConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=None)
print("head size:", Qwen3MoeAttention(config, layer_idx=0).head_dim)
