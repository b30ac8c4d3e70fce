"""sqrt of infinity on the CPU is NaN, but only in tensors of eight or more elements.

The vectorised loop computes x * rsqrt(x), inf * 0; the rest of the elements gets the scalar function.
Adam with an infinite gradient then makes NaN of a weight where it should leave it alone.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/funcs/activation_functor.h `SqrtFunctor`
:prints:
    9 elements: nan and inf
:should print:
    9 elements: inf and inf
:change:
    Use the processor's square root (Eigen's accurate ``psqrt``, without EIGEN_FAST_MATH) for float32.
:workaround: paddle_fused/ops/fused_adamw/op.py
"""

import paddle

roots = paddle.sqrt(paddle.full([9], float("inf"))).tolist()
print("9 elements:", roots[0], "and", roots[-1])
