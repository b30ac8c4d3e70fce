"""With sequence parallelism, each process has other gradients of Qwen3-VL's deepstack features.

A process adds the features of its own tokens, which it selects without a sum of the gradients. The vision
tower is in every process, and its weights diverge.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/transformers/qwen3_vl/modeling.py:1207 `visual_embeds = visual_embeds[visual_offset :`
:prints:
    tokens with a gradient: [1, 1, 0, 0] and [0, 0, 1, 1]
:should print:
    tokens with a gradient: [1, 1, 1, 1] and [1, 1, 1, 1]
:change: Sum the gradients of ``visual_embeds`` over the processes in the backward pass.
:workaround: llm_npu.patches.paddleformers.vision.fix_qwen3_vl_deepstack_gradients
"""

import types

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLTextModel

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.set_device("cpu")  # Tensor.device fails on npu
model = types.SimpleNamespace(config=types.SimpleNamespace(sequence_parallel=True))
states, is_image = paddle.zeros([2, 8]), paddle.ones([4], "bool")
features = paddle.ones([4, 8])
features.stop_gradient = False
Qwen3VLTextModel._deepstack_process(model, states, is_image, features).sum().backward()
paddle.set_device("npu")
gradients = []
dist.all_gather(gradients, paddle.to_tensor(features.grad.numpy()))
print("tokens with a gradient:", " and ".join(str(x[:, 0].astype("int64").tolist()) for x in gradients))
