"""A custom operator cannot have an optional input missing under auto-parallel: SIGSEGV.

``RunInferShapeFn`` reads the shape of every input tensor, also of those that are not there.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/eager/custom_operator/custom_operator_utils.cc `RunInferShapeFn`
:prints:
    calling
:ends: SIGSEGV
:should print:
    calling
    [[2.0, 2.0]]
:change:
    Take an undefined tensor of an optional input for ``paddle::none``, as ``run_custom_op_impl`` does
    for dense tensors.
:workaround: paddle_fused/csrc/ops/dropout_add_norm.cc
"""

import tempfile
from pathlib import Path

import paddle
import paddle.distributed as dist
from paddle.utils import cpp_extension

SOURCE = """
#include "paddle/extension.h"
using paddle::optional;
using Shape = std::vector<int64_t>;
using paddle::Tensor;
std::vector<Tensor> compute(const Tensor& x, const optional<Tensor>& y) { return {x + x}; }
std::vector<Shape> shape(const Shape& x, const optional<Shape>& y) { return {x}; }
using Type = paddle::DataType;
std::vector<Type> dtype(const Type& x, const optional<Type>& y) { return {x}; }
PD_BUILD_OP(twice).Inputs({"X", paddle::Optional("Y")}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(compute))
    .SetInferShapeFn(PD_INFER_SHAPE(shape)).SetInferDtypeFn(PD_INFER_DTYPE(dtype));
"""
folder = Path(tempfile.mkdtemp())
(folder / "twice.cc").write_text(SOURCE)
operators = cpp_extension.load("twice_operator", [str(folder / "twice.cc")], build_directory=str(folder))
x = dist.shard_tensor(paddle.ones([1, 2]), dist.ProcessMesh([0], dim_names=["x"]), [dist.Replicate()])
print("calling", flush=True)
print(operators.twice(x, None)._local_value().tolist())
