"""With tensor parallelism DeepSeek-V3's rotated keys get the gradients of one process's heads.

All heads share the rotated part of a key. ``GatherOp`` sums nothing in its backward pass, so the gradients
of the other processes' heads are lost; without sequence parallelism nothing is in its place. In the
program the heads of rank 0 have no effect, and those of rank 1 see the tokens of rank 0.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:715 `k_pe = GatherOp.apply(k_pe)`
:prints:
    rotated keys of rank 0 get a gradient: False
:should print:
    rotated keys of rank 0 get a gradient: True
:change: ``AllGatherOp``, and ``mp_ops._c_identity`` without sequence parallelism.
:workaround: llm_npu.patches.paddleformers.deepseek.fix_rotated_key
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
from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3Attention  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8}
heads |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
scaling = {"type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
scaling |= {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
config = DeepseekV3Config(hidden_size=32, **heads, rope_scaling=scaling, fuse_rms_norm=False)
config.tensor_model_parallel_size, config.sequence_parallel = 2, True
config._attn_implementation = "eager"
attention = DeepseekV3Attention(config, 0)
if paddle.distributed.get_rank() == 0:
    attention.o_proj.weight.set_value(paddle.zeros_like(attention.o_proj.weight))
inputs = {"position_ids": paddle.arange(4).unsqueeze(0), "attention_mask": paddle.zeros([1, 1, 4, 4])}
inputs["position_embeddings"] = paddle.ones([1, 4, 8]), paddle.zeros([1, 4, 8])
attention(paddle.randn([2, 32]), **inputs).square().sum().backward()
rotated = attention.kv_a_proj_with_mqa.weight.grad[:, 8:]
print("rotated keys of rank 0 get a gradient:", bool((rotated != 0).any()))
