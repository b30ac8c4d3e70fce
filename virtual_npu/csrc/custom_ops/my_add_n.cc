// my_add_n(X, Y, Z) -> X + Y + Z. Not differentiable. It is paddle-custom-npu's example of an operator that a graph
// pass inserts.
#include "framework/paddle_release.h"
#include "custom_ops/checks.h"
#include "observe/operator_call.h"

namespace virtual_npu::my_add_n {
namespace {

using Shape = std::vector<int64_t>;

std::vector<paddle::Tensor> forward(const paddle::Tensor& x, const paddle::Tensor& y, const paddle::Tensor& z) {
  check_places("my_add_n", {{"X", x}, {"Y", y}, {"Z", z}});
  for (const Argument& argument : {Argument{"Y", y}, Argument{"Z", z}})
    if (argument.tensor.dtype() != x.dtype() || argument.tensor.shape() != x.shape())
      refuse("my_add_n", std::string(argument.name) + " is " + text(argument.tensor.dtype()) + " of shape " +
                             text(argument.tensor.shape()) + " and X " + text(x.dtype()) + " of shape " +
                             text(x.shape()) +
                             "; accepted: the same dtype and shape for all three. Cast or broadcast them first.");
  OperatorCall call("my_add_n", x.dtype(), {&x, &y, &z});
  return call.returns({paddle::experimental::add(paddle::experimental::add(x, y), z)});
}

std::vector<Shape> infer_shapes(const Shape& x, const Shape& /*y*/, const Shape& /*z*/) { return {x}; }

std::vector<paddle::DataType> infer_dtypes(const paddle::DataType& x, const paddle::DataType& /*y*/,
                                           const paddle::DataType& /*z*/) {
  return {x};
}

}  // namespace
}  // namespace virtual_npu::my_add_n

PD_BUILD_OP(my_add_n)
    .Inputs({"X", "Y", "Z"})
    .Outputs({"Out"})
    .SetKernelFn(PF_KERNEL(virtual_npu::my_add_n::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::my_add_n::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::my_add_n::infer_dtypes));
