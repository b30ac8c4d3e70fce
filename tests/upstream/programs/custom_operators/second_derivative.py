"""A custom operator without a second derivative ends the graph of the gradients without an error.

With ``create_graph=True`` the gradient of such an operator is a constant for the next ``backward``. Where the
operator is a part of the function, the second derivative lacks its share. Paddle's own operators without
a second derivative raise "The Op ... doesn't have any grad op" there.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/eager/custom_operator/custom_operator_node.cc `RunCustomOpNode::operator()`
:prints:
    second derivative of x^2 + x^3 at 3: 18.0
:should print:
    RuntimeError
:change:
    Where ``require_any_grad`` is true and ``vec_map`` has no double gradient, raise this error, as the
    generated nodes do.
:workaround: paddle_fused/csrc/ops/operator.h, paddle_fused/ascend.py
"""

import tempfile
from pathlib import Path

import paddle
from paddle.utils import cpp_extension

SOURCE = """
#include "paddle/extension.h"
using paddle::Tensor;
std::vector<Tensor> compute(const Tensor& x) { return {x * x}; }
std::vector<Tensor> gradient(const Tensor& x, const Tensor& dout) { return {x * dout + x * dout}; }
PD_BUILD_OP(square_of).Inputs({"X"}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(compute));
PD_BUILD_GRAD_OP(square_of).Inputs({"X", paddle::Grad("Out")}).Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(gradient));
"""
folder = Path(tempfile.mkdtemp())
(folder / "square.cc").write_text(SOURCE)
operators = cpp_extension.load("square_operator", [str(folder / "square.cc")], build_directory=str(folder))

x = paddle.to_tensor(3.0, stop_gradient=False)
(gradient,) = paddle.grad([operators.square_of(x) + x**3], [x], create_graph=True)
try:
    gradient.backward()
    print("second derivative of x^2 + x^3 at 3:", float(x.grad))
except Exception as error:
    print(type(error).__name__)
