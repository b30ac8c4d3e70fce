"""Tensor parallel processes train the norms of Qwen3's heads apart, unless they are sequence parallel.

``q_norm`` and ``k_norm`` are in every process, and each process has the gradient of its own heads. They
are marked for it, but the trainer sums marked gradients with sequence parallelism only. Qwen3-MoE has the
same norms.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/qwen3/modeling.py:187 `self.q_norm = GeneralNorm.create(`
    paddleformers/trainer/trainer.py:3686 `if self.args.tensor_model_parallel_size > 1 and self.args.seq`
:prints:
    gradients of q_norm are equal: False
:should print:
    gradients of q_norm are equal: True
:change:
    Sum these two in the backward pass, by a hook of the weights where sequence_parallel is off.
:workaround: llm_npu.patches.paddleformers.parallel.fix_norms_of_heads
"""

import sys
import types

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

# without which the module cannot be imported where there is no CUDA
provider = types.ModuleType("paddleformers.transformers.gpt_provider")
provider.GPTModel, provider.GPTModelProvider = type("GPTModel", (), {}), type("GPTModelProvider", (), {})
sys.modules[provider.__name__] = provider

from paddleformers.transformers import Qwen3Config  # noqa: E402
from paddleformers.transformers.qwen3.modeling import Qwen3Attention  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
config = Qwen3Config(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=8)
config.tensor_model_parallel_size, config.fuse_rms_norm = 2, False
config._attn_implementation = "eager"
attention = Qwen3Attention(config, 0)
tables = paddle.ones([1, 3, 8]), paddle.zeros([1, 3, 8])
paddle.seed(1)
attention(paddle.randn([1, 3, 16]), position_embeddings=tables)[0].square().sum().backward()
gradients = []
dist.all_gather(gradients, attention.q_norm.weight.grad)
print("gradients of q_norm are equal:", bool((gradients[0] == gradients[1]).all()))
