// pf_add_rms_norm(x, residual, weight; epsilon) -> (y, sum, rstd): kernels/rms_norm with a preceding addition, over
// the dimensions of weight. x, residual and weight have the same dtype, as in aclnnAddRmsNorm.
#include "kernels/elementwise/cast.h"
#include "kernels/norms/rms_norm.h"
#include "ops/operator.h"
#include "ops/rms_norm_shapes.h"

namespace paddle_fused::ops::add_rms_norm {
namespace {

constexpr char kOp[] = "pf_add_rms_norm";

void check_shapes(const Shape& x, const Shape& residual, const Shape& weight) {
  check_weight_shape(kOp, x, weight);
  if (x != residual)
    refuse(kOp, "x has shape " + text(x) + " and residual " + text(residual) + "; accepted: equal shapes.");
}

std::vector<Tensor> forward(const Tensor& x, const Tensor& residual, const Tensor& weight, float epsilon) {
  check_places(kOp, {{"x", x}, {"residual", residual}, {"weight", weight}});
  check_float(kOp, {"x", x});
  check_same_dtype(kOp, {{"x", x}, {"residual", residual}, {"weight", weight}});
  check_shapes(x.shape(), residual.shape(), weight.shape());
  const HostCall call(kOp, x);
  const Tensor dense_x = dense(x), dense_residual = dense(residual), dense_weight = dense(weight);
  Tensor y = paddle::empty(x.shape(), x.dtype(), x.place());
  Tensor sum = paddle::empty(x.shape(), x.dtype(), x.place());
  Tensor rstd = paddle::empty(rstd_shape(x.shape(), weight.shape()), DataType::FLOAT32, x.place());
  const int64_t width = weight.numel();
  if (x.numel() > 0)
    kernels::add_rms_norm_forward(element_type(x.dtype()), dense_x.data(), dense_residual.data(), dense_weight.data(),
                                  epsilon, x.numel() / width, width, y.data(), sum.data(), rstd.data<float>());
  return {y, sum, rstd};
}

// One gradient for both x and residual: sum's own gradient plus the gradient through y.
std::vector<Tensor> backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum, const Tensor& rstd,
                             const Tensor& weight) {
  check_places(kOp, {{"sum", sum}, {"rstd", rstd}, {"weight", weight}});
  if (!dy.defined() && !dsum.defined())
    refuse(kOp, "the loss depends only on rstd; only y and sum have gradients. Detach rstd.");
  const Tensor zeros = dy.defined() ? dy : paddle::zeros(sum.shape(), sum.dtype(), sum.place());
  check_gradient(kOp, {"the gradient of y", zeros}, {"sum", sum}, sum.shape());
  if (dsum.defined()) check_gradient(kOp, {"the gradient of sum", dsum}, {"sum", sum}, sum.shape());
  const HostCall call("pf_add_rms_norm_grad", sum);
  const Tensor dense_dy = dense(zeros), dense_sum = dense(sum), dense_weight = dense(weight);
  const Tensor dense_dsum = dsum.defined() ? dense(dsum) : dsum;
  // Two tensors, because Paddle adds further gradients to a tensor in place.
  Tensor dx = paddle::empty(sum.shape(), sum.dtype(), sum.place());
  Tensor dresidual = paddle::empty(sum.shape(), sum.dtype(), sum.place());
  Tensor dweight = paddle::empty(weight.shape(), weight.dtype(), sum.place());
  const int64_t width = weight.numel();
  std::vector<float> weight_sums(width);
  const auto type = element_type(sum.dtype());
  kernels::rms_norm_backward(type, type, dense_dy.data(), dense_sum.data(), rstd.data<float>(), dense_weight.data(),
                             dsum.defined() ? dense_dsum.data() : nullptr, sum.numel() / width, width, dx.data(),
                             dresidual.data(), weight_sums.data());
  kernels::cast(kernels::ElementType::kFloat32, weight_sums.data(), type, dweight.data(), width);
  return {dx, dresidual, dweight};
}

std::vector<Shape> infer_shapes(const Shape& x, const Shape& /*residual*/, const Shape& weight, float /*epsilon*/) {
  return {x, x, rstd_shape(x, weight)};
}
std::vector<DataType> infer_dtypes(const DataType& x, const DataType& /*residual*/, const DataType& /*weight*/) {
  return {x, x, DataType::FLOAT32};
}

std::vector<Shape> infer_gradient_shapes(const Shape& /*dy*/, const Shape& /*dsum*/, const Shape& sum,
                                         const Shape& /*rstd*/, const Shape& weight) {
  return {sum, sum, weight};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& /*dy*/, const DataType& /*dsum*/, const DataType& sum,
                                            const DataType& /*rstd*/, const DataType& weight) {
  return {sum, sum, weight};
}

}  // namespace
}  // namespace paddle_fused::ops::add_rms_norm

PD_BUILD_OP(pf_add_rms_norm)
    .Inputs({"x", "residual", "weight"})
    .Outputs({"y", "sum", "rstd"})
    .Attrs({"epsilon: float"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::add_rms_norm::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::add_rms_norm::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::add_rms_norm::infer_dtypes));

PD_BUILD_GRAD_OP(pf_add_rms_norm)
    .Inputs({paddle::Grad("y"), paddle::Grad("sum"), "sum", "rstd", "weight"})
    .Outputs({paddle::Grad("x"), paddle::Grad("residual"), paddle::Grad("weight")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::add_rms_norm::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::add_rms_norm::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::add_rms_norm::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_add_rms_norm, "x", "y");
