"""DeepSeek-V3 with tensor parallelism, and without sequence parallelism, fails in its attention.

Each rank has ``num_local_heads`` heads, and this branch reshapes to ``num_heads``.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:705 `target_query_shape = [0, 0, self.num_heads,`
:error: ValueError: (InvalidArgument) The 'shape' in ReshapeOp is invalid. ...
:should print:
    [1, 3, 32]
:change: ``num_local_heads`` in lines 705 and 706, as in the other branch.
:workaround: llm_npu.patches.paddleformers.deepseek.fix_heads
"""

import sys
import types

import paddle
from paddle.distributed import fleet

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
sys.modules["paddlefleet_ops"] = fleet_ops

from paddleformers.transformers import DeepseekV3Config  # noqa: E402
from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3ForCausalLM  # noqa: E402
from paddleformers.utils import masking_utils  # noqa: E402

masking_utils.get_env_device = lambda: "cpu"  # or the report about masks on npu fails before

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
sizes = {"hidden_size": 32, "vocab_size": 32, "num_hidden_layers": 1, "intermediate_size": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8}
heads |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
dense = {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "fuse_rms_norm": False}
scaling = {"type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
scaling |= {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
parallel = {"tensor_model_parallel_size": 2, "tensor_parallel_output": False}
config = DeepseekV3Config(**sizes, **heads, **dense, **parallel, rope_scaling=scaling)
model = DeepseekV3ForCausalLM(config)
model.eval()
print(model(paddle.to_tensor([[1, 2, 3]]), use_cache=False, return_dict=True).logits.shape)
