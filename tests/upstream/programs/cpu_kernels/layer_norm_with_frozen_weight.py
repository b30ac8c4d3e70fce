"""The gradient of layer_norm on the CPU ignores a frozen weight.

The kernel multiplies by the weight only where the gradient of the weight is wanted (``if (d_scale)``).
With a frozen weight the gradient of the input is that of a weight of ones, and nothing reports it.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/cpu/layer_norm_grad_kernel.cc `LayerNormGradKernel`
:prints:
    trained weight: [2.2908, -3.4362, 1.1454]
    frozen weight: [0.2291, -0.3436, 0.1145]
:should print:
    trained weight: [2.2908, -3.4362, 1.1454]
    frozen weight: [2.2908, -3.4362, 1.1454]
:change: ``if (scale)`` instead of ``if (d_scale)`` where the gradient of the input is computed.
:workaround: paddle_fused/ops/dropout_add_norm/op.py
"""

import paddle
import paddle.nn.functional as F

for kind in ("trained", "frozen"):
    x = paddle.to_tensor([[1.0, 2.0, 4.0]], stop_gradient=False)
    weight = paddle.full([3], 10.0)
    weight.stop_gradient = kind == "frozen"
    F.layer_norm(x, [3], weight)[0, 0].backward()
    print(f"{kind} weight:", [round(value, 4) for value in x.grad[0].tolist()])
