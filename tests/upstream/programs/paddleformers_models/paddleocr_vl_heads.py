"""PaddleOCR-VL's attention fails under tensor parallelism.

Each process has ``num_heads`` heads, but their number in the reshape is that of all processes:
``q_hidden_size`` and ``kv_hidden_size`` are not divided.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/paddleocr_vl/modeling.py:1144 `self.q_hidden_size // self.head_dim`
:error: ValueError: (InvalidArgument) The 'shape' in ReshapeOp is invalid. ...
:should print:
    [1, 3, 16]
:change: Reshape to ``num_heads`` and ``num_key_value_heads``.
:workaround: llm_npu.patches.paddleformers.vision.fix_paddleocr_vl_shards
"""

import sys
import types

import paddle
from paddle.distributed import fleet

# without which the module cannot be imported where there is no triton
kernels = types.ModuleType("paddleformers.triton_kernels")
kernels.apply_rotary_pos_emb_vision = kernels.apply_rotary_emb = lambda *_: None
kernels.apply_rotary_pos_emb_vision.is_available = lambda *_: False
sys.modules[kernels.__name__] = kernels

from paddleformers.transformers.paddleocr_vl.configuration import PaddleOCRVLConfig  # noqa: E402
from paddleformers.transformers.paddleocr_vl.modeling import Ernie4_5Attention  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
scaling = {"type": "default", "mrope_section": [2, 1, 1]}
sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
config = PaddleOCRVLConfig(**sizes, rope_scaling=scaling)
config.tensor_model_parallel_size, config._attn_implementation = 2, "eager"
attention = Ernie4_5Attention(config)
tables = paddle.ones([3, 1, 3, 8]), paddle.zeros([3, 1, 3, 8])
print(attention(paddle.randn([1, 3, 16]), position_embeddings=tables)[0].shape)
