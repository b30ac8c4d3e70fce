"""The gradient of matmul fails where a frozen factor is empty.

For an empty factor the kernel writes both gradients, also the one that is not wanted, whose pointer is
null. In an MoE layer with frozen inputs, an expert without tokens ends the backward pass. Releases
before 3.2 also crash where the empty factor is trained and the other one is frozen.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/impl/matmul_grad_kernel_impl.h `MatmulGradKernel`
:error: ValueError: (InvalidArgument) Required tensor shall not be nullptr, but received nullptr.
:should print:
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
:change: In the branch for empty tensors, write a gradient only if its pointer is not null.
:workaround: paddle_fused/ops/grouped_matmul/op.py, paddle_fused/ops/linear_cross_entropy/logits.py
"""

import paddle

rows = paddle.zeros([0, 3])
weight = paddle.ones([3, 2])
weight.stop_gradient = False
paddle.matmul(rows, weight).sum().backward()
print(weight.grad.tolist())
