"""The gradient of silu is NaN for large negative inputs: below -88.7 in float32, below -709 in float64.

The kernel computes 1 + exp(-x) and multiplies by exp(-x), which is infinite there: inf / inf. The
gradient is about 0.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/funcs/activation_functor.h `SiluGradFunctor`
:prints:
    nan
:should print:
    -0.0
:change: With s = 1 / (1 + exp(-x)) compute s * (1 + x * (1 - s)), which is finite for every finite x.
:workaround: tests/ops/reports/test_random_calls.py
"""

import paddle

x = paddle.to_tensor([-100.0], stop_gradient=False)
paddle.nn.functional.silu(x).backward()
print(round(float(x.grad), 6))
