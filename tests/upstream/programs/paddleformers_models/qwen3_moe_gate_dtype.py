"""A Qwen3-MoE in bfloat16 fails without auto_cast, as in generation.

The router's weight is float32 (``dtype_guard("float32")``), and ``F.linear`` does not multiply bfloat16
by it.

:versions: paddleformers 1.2.0
:device: npu
:at:
    paddleformers/transformers/qwen3_moe/modeling.py:339 `router_logits = self.gate(hidden_states)`
:error: ...The type of data we are trying to retrieve (float32) does not match...
:should print:
    paddle.bfloat16
:change:
    ``self.gate(hidden_states.astype(self.gate.weight.dtype))``: the scores are computed in float32
    anyway.
:workaround: llm_npu.patches.paddleformers.experts.fix_qwen3_moe_gate_dtype
"""

import sys
import types

import paddle

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
provider = types.ModuleType("paddleformers.transformers.gpt_provider")
provider.GPTModel, provider.GPTModelProvider = type("GPTModel", (), {}), type("GPTModelProvider", (), {})
sys.modules |= {"paddlefleet_ops": fleet_ops, provider.__name__: provider}

from paddleformers.transformers import Qwen3MoeConfig  # noqa: E402
from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeSparseMoeBlock  # noqa: E402

paddle.set_device("npu")
paddle.set_default_dtype("bfloat16")
config = Qwen3MoeConfig(hidden_size=8, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2)
print(Qwen3MoeSparseMoeBlock(config)(paddle.ones([1, 3, 8], "bfloat16"))[0].dtype)
