"""AdamW refuses lr_ratio on the CPU.

The CPU kernel of adamw has the attribute ``lr_ratio`` and ignores it, so the Python class raises.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/optimizer/adamw.py:220 `raise NotImplementedError("'lr_ratio' is unimplemented in CPU.")`
:error: NotImplementedError: 'lr_ratio' is unimplemented in CPU.
:should print:
    0.9
:change: Multiply the learning rate by ``lr_ratio`` in the CPU kernel, as the CUDA kernel does.
:workaround: paddle_fused/ops/fused_adamw/op.py
"""

import paddle

weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
optimizer = paddle.optimizer.AdamW(1.0, parameters=[weight], weight_decay=0.0, lr_ratio=lambda parameter: 0.1)
weight.sum().backward()
optimizer.step()
print(round(float(weight), 4))
