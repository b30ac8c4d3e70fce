"""The gradient of value in x[mask] = value is 0 on the CPU if value has one element.

The selected elements get the value, but its gradient is not their sum. Indices instead of the mask give the
right gradient. A value of rank 0 gets the right gradient.

:versions: paddlepaddle 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/cpu/index_elementwise_put_grad_kernel.cc `CPUIndexElementwisePutGradKernel`
:prints:
    mask: [0.0]
    indices: [5.0]
:should print:
    mask: [5.0]
    indices: [5.0]
:change: The sum of the gradients of all selected elements.
:workaround: llm_npu.patches.operators.fix_gradient_of_assigned_values, paddle_fused/indexed_assignment.py
"""

import paddle

for kind, item in ("mask", [False, True, True, False]), ("indices", [1, 2]):
    value = paddle.ones([1])
    value.stop_gradient = False
    x = paddle.zeros([4])
    x[paddle.to_tensor(item)] = value
    (x * paddle.to_tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    print(f"{kind}:", value.grad.tolist())
