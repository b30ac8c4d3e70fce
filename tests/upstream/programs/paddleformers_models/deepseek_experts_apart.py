"""Sequence parallel processes train DeepSeek-V3's routers and experts apart.

Every process has all of them, and the gradient of its own tokens. They are not marked, so the trainer does
not sum their gradients.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:435 `self.gate = DeepseekV3TopkRouter(config)`
:prints:
    processes that mark routers and experts: 0
:should print:
    processes that mark routers and experts: 2
:change: Call ``mark_as_sequence_parallel_parameter`` on them, as the attention does in lines 652 and 653.
:workaround: llm_npu.patches.paddleformers.deepseek.fix_routers_and_experts
"""

import sys
import types

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import is_sequence_parallel_parameter

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
sys.modules["paddlefleet_ops"] = fleet_ops

from paddleformers.transformers import DeepseekV3Config  # noqa: E402
from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3MoE  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
scaling = {"type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
scaling |= {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
experts = {"moe_intermediate_size": 8, "n_routed_experts": 2, "n_shared_experts": 1}
config = DeepseekV3Config(hidden_size=8, **experts, rope_scaling=scaling)
config.tensor_model_parallel_size, config.sequence_parallel = 2, True
moe = DeepseekV3MoE(config)
whole = (*moe.gate.parameters(), *moe.experts.parameters())
count = paddle.to_tensor(float(all(map(is_sequence_parallel_parameter, whole))))
dist.all_reduce(count)
print("processes that mark routers and experts:", int(count))
