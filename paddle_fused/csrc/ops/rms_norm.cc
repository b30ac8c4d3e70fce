// pf_rms_norm(x, weight; epsilon) -> (y, rstd): kernels/rms_norm as an operator, over the dimensions of weight.
// weight has x's dtype or float32, y has x's dtype. weight's gradient is summed in float32 and has weight's dtype.
#include "kernels/norms/rms_norm.h"

#include "kernels/elementwise/cast.h"
#include "ops/operator.h"
#include "ops/rms_norm_shapes.h"

namespace paddle_fused::ops::rms_norm {
namespace {

constexpr char kOp[] = "pf_rms_norm";

void check(const Tensor& x, const Tensor& weight) {
  check_places(kOp, {{"x", x}, {"weight", weight}});
  check_float(kOp, {"x", x});
  if (weight.dtype() != DataType::FLOAT32) check_same_dtype(kOp, {{"x", x}, {"weight", weight}});
  check_weight_shape(kOp, x.shape(), weight.shape());
}

std::vector<Tensor> forward(const Tensor& x, const Tensor& weight, float epsilon) {
  check(x, weight);
  const HostCall call(kOp, x);
  const Tensor input = dense(x), scale = dense(weight);
  Tensor y = paddle::empty(x.shape(), x.dtype(), x.place());
  Tensor rstd = paddle::empty(rstd_shape(x.shape(), weight.shape()), DataType::FLOAT32, x.place());
  const int64_t width = weight.numel();
  if (x.numel() > 0)
    kernels::rms_norm_forward(element_type(x.dtype()), element_type(weight.dtype()), input.data(), scale.data(),
                              epsilon, x.numel() / width, width, y.data(), rstd.data<float>());
  return {y, rstd};
}

std::vector<Tensor> backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& weight) {
  check(x, weight);
  if (!dy.defined()) refuse(kOp, "the loss depends on rstd but not on y; only y has a gradient. Detach rstd.");
  check_gradient(kOp, {"the gradient of y", dy}, {"x", x}, x.shape());
  const HostCall call("pf_rms_norm_grad", x);
  const Tensor gradient = dense(dy), input = dense(x), scale = dense(weight);
  Tensor dx = paddle::empty(x.shape(), x.dtype(), x.place());
  Tensor dweight = paddle::empty(weight.shape(), weight.dtype(), x.place());
  const int64_t width = weight.numel();
  std::vector<float> sums(width);
  kernels::rms_norm_backward(element_type(x.dtype()), element_type(weight.dtype()), gradient.data(), input.data(),
                             rstd.data<float>(), scale.data(), nullptr, x.numel() / width, width, dx.data(),
                             nullptr, sums.data());
  kernels::cast(kernels::ElementType::kFloat32, sums.data(), element_type(weight.dtype()), dweight.data(), width);
  return {dx, dweight};
}

std::vector<Shape> infer_shapes(const Shape& x, const Shape& weight, float /*epsilon*/) {
  return {x, rstd_shape(x, weight)};
}
std::vector<DataType> infer_dtypes(const DataType& x, const DataType& /*weight*/) { return {x, DataType::FLOAT32}; }

std::vector<Shape> infer_gradient_shapes(const Shape& /*dy*/, const Shape& x, const Shape& /*rstd*/,
                                         const Shape& weight) {
  return {x, weight};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& /*dy*/, const DataType& x, const DataType& /*rstd*/,
                                            const DataType& weight) {
  return {x, weight};
}

}  // namespace
}  // namespace paddle_fused::ops::rms_norm

PD_BUILD_OP(pf_rms_norm)
    .Inputs({"x", "weight"})
    .Outputs({"y", "rstd"})
    .Attrs({"epsilon: float"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::rms_norm::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::rms_norm::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::rms_norm::infer_dtypes));

PD_BUILD_GRAD_OP(pf_rms_norm)
    .Inputs({paddle::Grad("y"), "x", "rstd", "weight"})
    .Outputs({paddle::Grad("x"), paddle::Grad("weight")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::rms_norm::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::rms_norm::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::rms_norm::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_rms_norm, "x", "y");
