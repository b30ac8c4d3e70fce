// rms_norm_npu(x, gamma; epsilon) -> (y, rstd), the operator of paddle-custom-npu over aclnnRmsNorm / aclnnRmsNormGrad.
//
// x has rank 1 to 8 and gamma the shape of x's last dimensions; rstd has x's rank with those dimensions set to 1.
// y is allocated with gamma's dtype, but aclnnRmsNorm requires x's dtype for y. Only combinations with equal dtypes
// of x and gamma are therefore supported; the others are rejected. dgamma is always float32.
#include "framework/paddle_release.h"
#include "kernels/norms/rms_norm.h"

#include <algorithm>

#include "custom_ops/checks.h"
#include "element_type.h"
#include "observe/operator_call.h"

namespace virtual_npu::rms_norm_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using paddle::DataType;
using Shape = std::vector<int64_t>;

constexpr char kOp[] = "rms_norm_npu";

Shape rstd_shape(const Shape& x, const Shape& gamma) {
  const size_t normed = std::min(gamma.size(), x.size());
  Shape shape = x;
  std::fill(shape.end() - normed, shape.end(), 1);
  return shape;
}

// Also called while a static program is built, where an unknown dimension is -1.
void check_shapes(const Shape& x, const Shape& gamma) {
  bool fits = !x.empty() && static_cast<int64_t>(x.size()) <= contract::limits::rms_norm_rank && !gamma.empty() &&
              gamma.size() <= x.size();
  for (size_t i = 0; fits && i < gamma.size(); ++i) {
    const int64_t from_x = x[x.size() - gamma.size() + i];
    fits = gamma[i] != 0 && (gamma[i] == from_x || gamma[i] < 0 || from_x < 0);
  }
  if (fits) return;
  refuse(contract::rules::rms_norm_shape, kOp, "x has shape " + text(x) + " and gamma " + text(gamma));
}

void check_inputs(const paddle::Tensor& x, const paddle::Tensor& gamma) {
  check_places(kOp, {{"x", x}, {"gamma", gamma}});
  check_dtype(contract::rules::rms_norm_dtype, kOp, {"x", x}, contract::dtypes::rms_norm_dtype);
  check_same_dtype(contract::rules::rms_norm_plugin_gamma_dtype, kOp, {{"x", x}, {"gamma", gamma}});
  check_shapes(x.shape(), gamma.shape());
}

std::vector<paddle::Tensor> forward(const paddle::Tensor& x, const paddle::Tensor& gamma, float epsilon) {
  check_inputs(x, gamma);
  if (!(epsilon >= 0.0f))
    refuse(contract::rules::rms_norm_epsilon, kOp, "epsilon is " + std::to_string(epsilon));
  OperatorCall call(kOp, x.dtype(), {&x, &gamma});
  const paddle::Tensor input = dense(x), scale = dense(gamma);
  paddle::Tensor y = paddle::empty(x.shape(), gamma.dtype(), x.place());
  paddle::Tensor rstd = paddle::empty(rstd_shape(x.shape(), gamma.shape()), DataType::FLOAT32, x.place());
  const int64_t width = gamma.numel();
  if (x.numel() > 0)
    kernels::rms_norm_forward(element_type(x.dtype()), element_type(gamma.dtype()), input.data(), scale.data(), epsilon,
                              x.numel() / width, width, y.data(), rstd.data<float>());
  return call.returns({y, rstd});
}

std::vector<paddle::Tensor> backward(const paddle::Tensor& dy, const paddle::Tensor& x, const paddle::Tensor& rstd,
                                     const paddle::Tensor& gamma) {
  check_inputs(x, gamma);
  if (!dy.defined())
    refuse(kOp, "the loss depends on rstd but not on y; only y has a gradient. Use rstd.detach(), or compute it with "
                "composed operators.");
  check_places(kOp, {{"x", x}, {"rstd", rstd}});
  if (static_cast<int64_t>(x.shape().size()) < at_release(contract::limits::rms_norm_gradient_rank))
    refuse(contract::rules::rms_norm_gradient_rank, kOp, "x has shape " + text(x.shape()));
  check_gradient(kOp, {"x", x}, {"the gradient of y", dy});
  OperatorCall call("rms_norm_npu_grad", x.dtype(), {&dy, &x, &rstd, &gamma});
  const paddle::Tensor gradient = dense(dy), input = dense(x), scale = dense(gamma);
  paddle::Tensor dx = paddle::empty(x.shape(), x.dtype(), x.place());
  paddle::Tensor dgamma = paddle::empty(gamma.shape(), DataType::FLOAT32, x.place());
  const int64_t width = gamma.numel();
  kernels::rms_norm_backward(element_type(x.dtype()), element_type(gamma.dtype()), gradient.data(), input.data(),
                             rstd.data<float>(), scale.data(), nullptr, x.numel() / width, width, dx.data(),
                             nullptr, dgamma.data<float>());
  return call.returns({dx, dgamma});
}

std::vector<Shape> infer_shapes(const Shape& x, const Shape& gamma, float /*epsilon*/) {
  check_shapes(x, gamma);
  return {x, rstd_shape(x, gamma)};
}

std::vector<DataType> infer_dtypes(const DataType& /*x*/, const DataType& gamma) { return {gamma, DataType::FLOAT32}; }

std::vector<Shape> infer_gradient_shapes(const Shape& /*dy*/, const Shape& x, const Shape& /*rstd*/,
                                         const Shape& gamma) {
  return {x, gamma};
}

std::vector<DataType> infer_gradient_dtypes(const DataType& /*dy*/, const DataType& x, const DataType& /*rstd*/,
                                            const DataType& /*gamma*/) {
  return {x, DataType::FLOAT32};
}

}  // namespace
}  // namespace virtual_npu::rms_norm_npu

PD_BUILD_OP(rms_norm_npu)
    .Inputs({"x", "gamma"})
    .Outputs({"y", "rstd"})
    .Attrs({"epsilon: float"})
    .SetKernelFn(PF_KERNEL(virtual_npu::rms_norm_npu::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::rms_norm_npu::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::rms_norm_npu::infer_dtypes));

PD_BUILD_GRAD_OP(rms_norm_npu)
    .Inputs({paddle::Grad("y"), "x", "rstd", "gamma"})
    .Outputs({paddle::Grad("x"), paddle::Grad("gamma")})
    .SetKernelFn(PF_KERNEL(virtual_npu::rms_norm_npu::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::rms_norm_npu::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::rms_norm_npu::infer_gradient_dtypes));
