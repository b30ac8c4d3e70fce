"""Qwen3-VL cannot recompute a vision tower that is trained.

The tower passes ``attn_mask_startend_row_indices`` to ``recompute_training_full``, which has no such
argument. The published files freeze the tower, whose hidden states then need no gradient, so that nothing is
recomputed.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/qwen3_vl/modeling.py:703 `attn_mask_startend_row_indices=attn_mask_`
    paddleformers/transformers/qwen3_vl/modeling.py:562 `def recompute_training_full(`
:error: TypeError: Qwen3VLVisionModel.recompute_training_full() got an unexpected keyword argument...
:should print:
    [1, 16]
:change: Add the argument, and pass it to ``recompute``.
:workaround: llm_npu.patches.paddleformers.vision.fix_qwen3_vl_recompute
"""

import paddle
from paddleformers.transformers.qwen3_vl.configuration import Qwen3VLVisionConfig
from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLVisionModel

paddle.set_device("cpu")
sizes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 2}
sizes |= {"out_hidden_size": 16, "num_position_embeddings": 4}
config = Qwen3VLVisionConfig(**sizes, deepstack_visual_indexes=[])
config.recompute_granularity, config.recompute_method, config.recompute_num_layers = "full", "uniform", 1
config._attn_implementation = "eager"
tower = Qwen3VLVisionModel(config)
print(tower(paddle.randn([4, 24]), paddle.to_tensor([[1, 2, 2]]))[0].shape)
