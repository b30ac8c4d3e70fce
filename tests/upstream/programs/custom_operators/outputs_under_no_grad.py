"""A custom operator records its gradient under no_grad, so its outputs need a gradient.

``_run_custom_op`` sets ``trace_backward`` to true, where Paddle's own operators ask whether gradients are
enabled. The gradient node keeps the inputs in memory as long as the output lives.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/pybind/eager_functions.cc `eager_api_run_custom_op`
:prints:
    Paddle's operator needs a gradient: False
    custom operator needs a gradient: True
:should print:
    Paddle's operator needs a gradient: False
    custom operator needs a gradient: False
:change: ``bool trace_backward = egr::Controller::Instance().HasGrad();``
:workaround: paddle_fused.native.run
"""

import tempfile
from pathlib import Path

import paddle
from paddle.utils import cpp_extension

SOURCE = """
#include "paddle/extension.h"
using paddle::Tensor;
std::vector<Tensor> compute(const Tensor& x) { return {x + x}; }
std::vector<Tensor> gradient(const Tensor& x, const Tensor& dout) { return {dout + dout}; }
PD_BUILD_OP(sum_of_two).Inputs({"X"}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(compute));
PD_BUILD_GRAD_OP(sum_of_two).Inputs({"X", paddle::Grad("Out")}).Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(gradient));
"""
folder = Path(tempfile.mkdtemp())
(folder / "sum.cc").write_text(SOURCE)
operators = cpp_extension.load("sum_operator", [str(folder / "sum.cc")], build_directory=str(folder))

x = paddle.to_tensor([1.0], stop_gradient=False)
with paddle.no_grad():
    print("Paddle's operator needs a gradient:", not (x + x).stop_gradient)
    print("custom operator needs a gradient:", not operators.sum_of_two(x).stop_gradient)
