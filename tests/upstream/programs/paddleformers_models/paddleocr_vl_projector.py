"""PaddleOCR-VL's projector fails under tensor parallelism.

Both of its linear layers have the default plan, ``colwise``, and do not gather their outputs. The second
layer has whole columns, and gets a part of its inputs.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/paddleocr_vl/modeling.py:861 `self.linear_2 = GeneralLinear.create(`
    paddleformers/transformers/paddleocr_vl/modeling.py:969 `self.linear_2(self.act(self.linear_1(x_merged)))`
:error: ValueError: (InvalidArgument) In operator matmul, ...
:should print:
    tokens: [2, 16]
:change: Divide the second layer by rows: ``tp_plan="rowwise"``.
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
from paddleformers.transformers.paddleocr_vl.modeling import Projector  # noqa: E402

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("npu")
scaling = {"type": "default", "mrope_section": [2, 1, 1]}
sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
vision = {"hidden_size": 4, "num_attention_heads": 2}
config = PaddleOCRVLConfig(**sizes, rope_scaling=scaling, vision_config=vision)
config.tensor_model_parallel_size = 2
projector = Projector(config, config.vision_config)
patches, grid = paddle.randn([1, 8, 4]), paddle.to_tensor([[1, 2, 4]])
print("tokens:", projector(patches, grid).shape)
