"""An error in a custom operator's shape inference ends the process while to_static captures a program.

The documented way to refuse shapes in ``SetInferShapeFn`` is PD_CHECK. While a program is captured, its
exception passes a frame that must not throw, and the process is aborted. In dygraph shape inference is
not asked.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/pybind/manual_static_op_function.h `static_api_run_custom_op`
:prints:
    capturing
:ends: SIGABRT
:should print:
    capturing
    ValueError
:change:
    Catch exceptions of the operator's functions where a program's operator is built, and rethrow them as
    Paddle's own errors, as it is done when a kernel runs.
:workaround:
    paddle_fused/csrc/ops/attention/flash_attention.cc, paddle_fused/csrc/ops/dropout_add_norm.cc,
    paddle_fused/csrc/ops/gated.cc, paddle_fused/csrc/ops/grouped_matmul.cc,
    paddle_fused/csrc/ops/linear_cross_entropy.cc, paddle_fused/csrc/ops/moe_token_permute.cc,
    paddle_fused/csrc/ops/moe_token_unpermute.cc, paddle_fused/csrc/ops/rms_norm_shapes.h,
    paddle_fused/csrc/ops/rotary.cc
"""

import tempfile
from pathlib import Path

import paddle
from paddle.utils import cpp_extension

SOURCE = """
#include "paddle/extension.h"
using Shape = std::vector<int64_t>;
std::vector<paddle::Tensor> compute(const paddle::Tensor& x) { return {x + x}; }
std::vector<Shape> shape(const Shape& x) {
  PD_CHECK(x.size() == 2, "x has another rank than 2");
  return {x};
}
PD_BUILD_OP(twice).Inputs({"X"}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(compute)).SetInferShapeFn(PD_INFER_SHAPE(shape));
"""
folder = Path(tempfile.mkdtemp())
(folder / "twice.cc").write_text(SOURCE)
operators = cpp_extension.load("twice_operator", [str(folder / "twice.cc")], build_directory=str(folder))


class Twice(paddle.nn.Layer):
    def forward(self, x):
        return operators.twice(x)


print("capturing", flush=True)
try:
    paddle.jit.to_static(Twice(), full_graph=True)(paddle.ones([2]))
except (ValueError, RuntimeError):
    print("ValueError")
