"""Tensor parallel processes train the norms of Qwen3-VL's heads apart, also with sequence parallelism.

``q_norm`` and ``k_norm`` are in every process, and each process has the gradient of its own heads. Qwen3's
norms are marked for the sum that the trainer makes with sequence parallelism. Those of Qwen3-VL are not.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/qwen3_vl/modeling.py:883 `self.q_norm = GeneralNorm.create(`
:prints:
    gradients of q_norm are equal: False
:should print:
    gradients of q_norm are equal: True
:change: Sum the gradients of both norms in the backward pass, by a hook of the weights.
:workaround: llm_npu.patches.paddleformers.parallel.fix_norms_of_heads
"""

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddleformers.transformers.qwen3_vl.configuration import Qwen3VLTextConfig
from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLTextAttention

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
config = Qwen3VLTextConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=8)
config.tensor_model_parallel_size, config.fuse_rms_norm = 2, False
config._attn_implementation = "eager"
attention = Qwen3VLTextAttention(config, 0)
tables = paddle.ones([1, 3, 8]), paddle.zeros([1, 3, 8])
paddle.seed(1)
attention(paddle.randn([1, 3, 16]), position_embeddings=tables)[0].square().sum().backward()
gradients = []
dist.all_gather(gradients, attention.q_norm.weight.grad)
print("gradients of q_norm are equal:", bool((gradients[0] == gradients[1]).all()))
