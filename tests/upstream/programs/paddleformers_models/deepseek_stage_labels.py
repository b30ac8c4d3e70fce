"""The last pipeline stage of a DeepSeek-V3 takes the first row of the labels for all of them.

``_prepare_pipeline_inputs_func`` gives the last stage labels and loss mask as a tuple, or the labels alone
if a batch has no mask. ``DeepseekV3PretrainingCriterionPipe`` takes the first in both cases.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:2349 `labels = labels[0]`
    paddleformers/nn/pp_model.py:745 `if len(ret) == 1:`
:error: ValueError: (InvalidArgument) The 'shape' in ReshapeOp is invalid. ...
:should print:
    loss: 2.08
:change:
    ``if isinstance(labels, tuple): labels = labels[0]``, as in ``CriterionLayerPipe``.
:workaround: llm_npu.patches.paddleformers.parallel.fix_deepseek_stage_labels
"""

import sys
from types import ModuleType

import paddle
from paddleformers.transformers import DeepseekV3Config

sys.modules["paddlefleet_ops"] = ModuleType("paddlefleet_ops")  # a package for CUDA
sys.modules["paddlefleet_ops"].is_deep_ep_available = lambda: False
from paddleformers.transformers.deepseek_v3 import modeling  # noqa: E402

criterion = modeling.DeepseekV3PretrainingCriterionPipe(DeepseekV3Config(vocab_size=8))
loss = criterion(paddle.zeros([2, 3, 8]), paddle.to_tensor([[1, 2, 3], [4, 5, 6]]))
print("loss:", round(float(loss), 2))
