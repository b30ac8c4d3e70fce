"""Sequence parallel processes train the last norm of a Qwen3-MoE apart.

Each process has the gradient of its own tokens. Other families mark this norm, so that the trainer sums
its gradients.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/qwen3_moe/modeling.py:972 `self.norm = GeneralNorm.create(`
:prints:
    processes that mark the last norm: 0
:should print:
    processes that mark the last norm: 2
:change: ``input_is_parallel=config.sequence_parallel``, as in qwen3/modeling.py:540.
:workaround: llm_npu.patches.paddleformers.parallel.fix_qwen3_moe_last_norm
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
provider = types.ModuleType("paddleformers.transformers.gpt_provider")
provider.GPTModel, provider.GPTModelProvider = type("GPTModel", (), {}), type("GPTModelProvider", (), {})
sys.modules |= {"paddlefleet_ops": fleet_ops, provider.__name__: provider}

from paddleformers.transformers import Qwen3MoeConfig  # noqa: E402
from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeModel  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
sizes = {"hidden_size": 16, "vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
experts = {"moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1}
config = Qwen3MoeConfig(**sizes, **experts, num_key_value_heads=2, head_dim=8, intermediate_size=8)
config.tensor_model_parallel_size, config.sequence_parallel = 2, True
model = Qwen3MoeModel(config)
count = paddle.to_tensor(float(is_sequence_parallel_parameter(model.norm.weight)))
dist.all_reduce(count)
print("processes that mark the last norm:", int(count))
