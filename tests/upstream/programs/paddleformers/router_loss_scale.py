"""In fp16, ERNIE-4.5's MoE models train without the losses of their routers.

``FakeMoERouterLoss`` makes up the gradient of a router's loss: 1, or 1 / ``num_acc_steps``. In fp16 the
trainer multiplies the loss of the model by the loss scale and divides all gradients by it. This one is
only divided, by 32,768 at first.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/ernie4_5_moe/modeling.py:252 `router_loss_grad_value = 1.0`
:prints:
    gradient of the router's loss: 0.0009765625
:should print:
    gradient of the router's loss: 1.0
:change:
    Pass the scale of the loss to the layer, as ``num_acc_steps`` is, and multiply the gradient by it.
:workaround: llm_npu/training/upstream_trainer.py
"""

import paddle
from paddleformers.transformers.ernie4_5_moe.modeling import FakeMoERouterLoss

scale = 1024.0
weight = paddle.create_parameter([1], "float32")  # of a router whose loss is its weight
tokens = 1.0 * paddle.create_parameter([2, 4], "float32")
hidden = FakeMoERouterLoss.apply(tokens, 1.0 * weight, 1, True)
(scale * hidden.sum()).backward()
print("gradient of the router's loss:", float(weight.grad) / scale)
