"""A captured custom operator has no gradient for an input of rank 0.

The shape of a scalar is an empty list, which the inference of the gradient operator takes for a tensor
that is not there: it expects no dtypes and gets one.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/pir/dialect/operator/ir/op_dialect.cc:956 `custom operator's InferDtypeFunc is wrong`
:prints:
    dygraph 2.0
:error: ValueError: ...custom operator's InferDtypeFunc is wrong, expected contains 0 Tensors' dtype...
:should print:
    dygraph 2.0
    program 2.0
:change: Count an empty shape as a tensor of rank 0; missing tensors are told by the optional inputs.
:workaround: paddle_fused/csrc/ops/dropout_add_norm.cc
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
PD_BUILD_OP(twice).Inputs({"X"}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(compute));
PD_BUILD_GRAD_OP(twice).Inputs({"X", paddle::Grad("Out")}).Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(gradient));
"""
folder = Path(tempfile.mkdtemp())
(folder / "twice.cc").write_text(SOURCE)
operators = cpp_extension.load("twice_operator", [str(folder / "twice.cc")], build_directory=str(folder))


class Twice(paddle.nn.Layer):
    def forward(self, x):
        return operators.twice(x)


for kind, layer in (("dygraph", Twice()), ("program", paddle.jit.to_static(Twice(), full_graph=True))):
    x = paddle.to_tensor(1.0, stop_gradient=False)
    layer(x).backward()
    print(kind, float(x.grad), flush=True)
