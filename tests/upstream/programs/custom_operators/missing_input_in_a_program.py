"""A captured custom operator with a missing optional input has no gradients.

In dygraph the gradient of a missing optional input is left out. A program's executor looks for it in the
outputs of the gradient operator, and fails.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/framework/new_executor/instruction/custom_kernel_instruction.cc:270 `Custom operator co`
:prints:
    dygraph [3.0] [1.0]
:error: ValueError: (InvalidArgument) Custom operator couldn't find custom output for name ...
:should print:
    dygraph [3.0] [1.0]
    program [3.0] [1.0]
:change:
    Leave out ``Grad(Optional(...))`` outputs whose input the forward operator did not get, as dygraph's
    ``RunCustomOpNode`` does.
:workaround: paddle_fused/native.py
"""

import tempfile
from pathlib import Path

import paddle
from paddle.utils import cpp_extension

SOURCE = """
#include "paddle/extension.h"
using paddle::optional;
using paddle::Tensor;
using Maybe = optional<Tensor>;
std::vector<Tensor> compute(const Tensor& x, const Maybe& y, const Tensor& z) { return {x * z}; }
std::vector<Tensor> gradient(const Tensor& x, const Maybe& y, const Tensor& z, const Tensor& dout) {
  return {dout * z, y ? dout : Tensor(), dout * x};
}
using Shape = std::vector<int64_t>;
std::vector<Shape> shape(const Shape& x, const optional<Shape>& y, const Shape& z) { return {x}; }
using Type = paddle::DataType;
std::vector<Type> dtype(const Type& x, const optional<Type>& y, const Type& z) { return {x}; }
PD_BUILD_OP(product).Inputs({"X", paddle::Optional("Y"), "Z"}).Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(compute)).SetInferShapeFn(PD_INFER_SHAPE(shape)).SetInferDtypeFn(PD_INFER_DTYPE(dtype));
PD_BUILD_GRAD_OP(product).Inputs({"X", paddle::Optional("Y"), "Z", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X"), paddle::Grad(paddle::Optional("Y")), paddle::Grad("Z")})
    .SetKernelFn(PD_KERNEL(gradient));
"""
folder = Path(tempfile.mkdtemp())
(folder / "product.cc").write_text(SOURCE)
operators = cpp_extension.load("product_operator", [str(folder / "product.cc")], build_directory=str(folder))


class Product(paddle.nn.Layer):
    def forward(self, x, z):
        return operators.product(x, None, z)


for kind, layer in (("dygraph", Product()), ("program", paddle.jit.to_static(Product(), full_graph=True))):
    x, z = (paddle.to_tensor([value], stop_gradient=False) for value in (1.0, 3.0))
    layer(x, z).backward()
    print(kind, x.grad.tolist(), z.grad.tolist(), flush=True)
