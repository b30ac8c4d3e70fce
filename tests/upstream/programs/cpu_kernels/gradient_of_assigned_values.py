"""The gradient of value in x[indices] = value is wrong on the CPU, or overwrites other memory, for elements
that do not have 4 bytes.

The kernel steps through the gradient of ``value`` by 4 bytes per element, whatever the dtype. In float16
and bfloat16 it writes up to twice the gradient's size, into other tensors or the allocator's data: indices
"out of bounds", wrong gradients, or a crash ("malloc(): corrupted top size"). In float64 and complex dtypes
each element overwrites a part of the element before it. Masks have the same defect. Custom devices whose
plugins have no such kernel fall back to this one.

:versions: paddlepaddle 3.1.1 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/cpu/index_elementwise_put_grad_kernel.cc `CPUIndexElementwisePutGradKernel`
:prints:
    float32: True
    float64: False
:should print:
    float32: True
    float64: True
:change: ``SizeOf(value_grad->dtype())`` instead of 4 as the element size that ``IndexPutStride`` gets.
:workaround: llm_npu.patches.operators.fix_gradient_of_assigned_values, paddle_fused/indexed_assignment.py
"""

import paddle

for dtype in ("float32", "float64"):
    value = paddle.ones([2], dtype)
    value.stop_gradient = False
    x = paddle.zeros([4], dtype)
    x[paddle.to_tensor([1, 3])] = value
    (x * paddle.to_tensor([1, 2, 3, 4], dtype)).sum().backward()
    print(f"{dtype}:", value.grad.tolist() == [2.0, 4.0])
