// pf_dropout_add_norm(x0, residual, weight, bias, rowscale, layerscale, seed; ...) -> (out, pre, mask, mean, rstd):
// kernels/dropout_add_norm as an operator, over the last dimension of x0. rowscale has x0's shape without the last
// dimension, or [1] if no dimension is left: captured programs do not support the gradient of a custom operator's
// input of rank 0.
//
// Under auto-parallel, Paddle 3.3.1 does not support missing optional inputs of custom operators, because its shape
// inference reads the shape of the missing tensor. No input is therefore optional: inputs not listed in `has` may be
// any tensor of rank 1 and are not read. mask is empty unless requested. RMS norm neither writes nor reads mean.
//
// The operator draws no random numbers: `seed` has the Philox key and counter of the call. It is therefore a function
// of its arguments, and the gradient and recomputation, which restores Paddle's generators, use the same mask.
#include "kernels/norms/dropout_add_norm.h"

#include <string>

#include "ops/operator.h"

namespace paddle_fused::ops::dropout_add_norm {
namespace {

constexpr char kOp[] = "pf_dropout_add_norm";

// The present inputs: attribute `has`, one bit per input, set by ops/dropout_add_norm.py.
struct Has {
  bool residual, bias, rowscale, layerscale;
  explicit Has(int64_t bits) : residual(bits & 1), bias(bits & 2), rowscale(bits & 4), layerscale(bits & 8) {}
};

// Also accepts shapes of rank 0, which are rejected at run time: Paddle 3.3.1 terminates the process if shape
// inference throws while a program is captured.
Shape one_per_row(Shape x) {
  if (!x.empty()) x.back() = 1;
  return x;
}

Shape rowscale_shape(Shape x0) {
  if (!x0.empty()) x0.pop_back();
  return x0.empty() ? Shape{1} : x0;
}

void check_shape(const char* name, const Shape& shape, const Shape& expected) {
  if (shape != expected)
    refuse(kOp, std::string(name) + " has shape " + text(shape) + "; accepted: " + text(expected) + ", to match x0.");
}

void check_shapes(const Shape& x0, const Shape& residual, const Shape& weight, const Shape& bias,
                  const Shape& rowscale, const Shape& layerscale, Has has) {
  if (x0.empty() || x0.back() == 0)
    refuse(kOp, "x0 has shape " + text(x0) + "; accepted: [..., H] with H above 0.");
  const Shape vector = {x0.back()};
  check_shape("weight", weight, vector);
  if (has.residual) check_shape("residual", residual, x0);
  if (has.bias) check_shape("bias", bias, vector);
  if (has.rowscale) check_shape("rowscale", rowscale, rowscale_shape(x0));
  if (has.layerscale) check_shape("layerscale", layerscale, vector);
}

// Checks that `argument` has the dtype of `like`, or float32.
void check_same_or_float32(const Argument& argument, const Argument& like) {
  if (argument.tensor.dtype() != DataType::FLOAT32) check_same_dtype(kOp, {like, argument});
}

bool draws(float dropout) { return dropout > 0.0f && dropout < 1.0f; }

void check_seed(const Tensor& seed) {
  if (seed.dtype() != DataType::INT64 || seed.numel() != 2)
    refuse(kOp, "seed is " + text(seed.dtype()) + " of shape " + text(seed.shape()) +
                    "; accepted: int64 of shape [2], the key and the counter of the random numbers.");
}

kernels::DropoutAddNorm problem_of(const Tensor& x0, DataType pre, DataType weight, const Tensor& seed, bool is_rms,
                                   float dropout, float epsilon) {
  kernels::DropoutAddNorm p{};
  p.norm = is_rms ? kernels::NormKind::kRmsNorm : kernels::NormKind::kLayerNorm;
  p.type = element_type(x0.dtype());
  p.pre_type = element_type(pre);
  p.weight_type = element_type(weight);
  p.width = x0.shape().back();
  p.rows = x0.numel() / p.width;
  p.epsilon = epsilon;
  p.keep_probability = 1.0 - static_cast<double>(dropout);
  if (draws(dropout)) {
    const Tensor host = seed.place().GetType() == phi::AllocationType::CPU ? seed : seed.copy_to(phi::CPUPlace(), true);
    p.seed = static_cast<uint64_t>(host.data<int64_t>()[0]);
    p.offset = static_cast<uint64_t>(host.data<int64_t>()[1]);
  }
  return p;
}

std::vector<Tensor> forward(const Tensor& x0, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                            const Tensor& rowscale, const Tensor& layerscale, const Tensor& seed, int64_t has_bits,
                            bool is_rms, float dropout, float epsilon, bool with_mask) {
  const Has has(has_bits);
  const Argument x0_argument{"x0", x0}, weight_argument{"weight", weight};
  // Inputs not listed in `has` are not read, but must be tensors.
  check_defined(kOp, {{"residual", residual}, {"bias", bias}, {"rowscale", rowscale}, {"layerscale", layerscale},
                      {"seed", seed}});
  check_places(kOp, {x0_argument, weight_argument});
  check_float(kOp, x0_argument);
  check_same_or_float32(weight_argument, x0_argument);
  if (has.residual) check_places(kOp, {x0_argument, {"residual", residual}});
  if (has.residual) check_same_or_float32({"residual", residual}, x0_argument);
  if (has.bias) check_places(kOp, {x0_argument, {"bias", bias}});
  if (has.bias) check_same_dtype(kOp, {weight_argument, {"bias", bias}});
  if (has.rowscale) check_places(kOp, {x0_argument, {"rowscale", rowscale}});
  if (has.rowscale) check_same_dtype(kOp, {x0_argument, {"rowscale", rowscale}});
  if (has.layerscale) check_places(kOp, {x0_argument, {"layerscale", layerscale}});
  if (has.layerscale) check_same_dtype(kOp, {x0_argument, {"layerscale", layerscale}});
  check_shapes(x0.shape(), residual.shape(), weight.shape(), bias.shape(), rowscale.shape(), layerscale.shape(), has);
  if (!(dropout >= 0.0f && dropout <= 1.0f))
    refuse(kOp, "dropout is " + std::to_string(dropout) + "; accepted: a probability from 0 to 1.");
  if (draws(dropout)) check_seed(seed);
  const HostCall call(kOp, x0);

  const DataType pre_dtype = has.residual ? residual.dtype() : x0.dtype();
  kernels::DropoutAddNorm p = problem_of(x0, pre_dtype, weight.dtype(), seed, is_rms, dropout, epsilon);
  const Tensor dense_x0 = dense(x0), dense_weight = dense(weight), dense_residual = dense(residual),
               dense_bias = dense(bias), dense_rowscale = dense(rowscale), dense_layerscale = dense(layerscale);
  p.x0 = dense_x0.data();
  p.weight = dense_weight.data();
  p.residual = has.residual ? dense_residual.data() : nullptr;
  p.bias = has.bias ? dense_bias.data() : nullptr;
  p.rowscale = has.rowscale ? dense_rowscale.data() : nullptr;
  p.layerscale = has.layerscale ? dense_layerscale.data() : nullptr;

  Tensor out = paddle::empty(x0.shape(), x0.dtype(), x0.place());
  Tensor pre = paddle::empty(x0.shape(), pre_dtype, x0.place());
  Tensor mask = paddle::empty(with_mask ? x0.shape() : Shape{0}, DataType::BOOL, x0.place());
  Tensor mean = paddle::empty(one_per_row(x0.shape()), DataType::FLOAT32, x0.place());
  Tensor rstd = paddle::empty(one_per_row(x0.shape()), DataType::FLOAT32, x0.place());
  if (x0.numel() > 0)
    kernels::dropout_add_norm_forward(p, out.data(), pre.data(),
                                      with_mask ? reinterpret_cast<uint8_t*>(mask.data<bool>()) : nullptr,
                                      mean.data<float>(), rstd.data<float>());
  return {out, pre, mask, mean, rstd};
}

std::vector<Tensor> backward(const Tensor& out_grad, const Tensor& pre_grad, const Tensor& x0, const Tensor& weight,
                             const Tensor& rowscale, const Tensor& layerscale, const Tensor& seed, const Tensor& pre,
                             const Tensor& mean, const Tensor& rstd, int64_t has_bits, bool is_rms, float dropout,
                             float epsilon) {
  const Has has(has_bits);
  const Argument pre_argument{"pre", pre};
  check_places(kOp, {{"x0", x0}, {"weight", weight}, pre_argument, {"mean", mean}, {"rstd", rstd}});
  if (out_grad.defined()) check_gradient(kOp, {"the gradient of out", out_grad}, {"x0", x0}, x0.shape());
  if (pre_grad.defined()) check_gradient(kOp, {"the gradient of pre", pre_grad}, pre_argument, pre.shape());
  const HostCall call("pf_dropout_add_norm_grad", x0);

  kernels::DropoutAddNorm p = problem_of(x0, pre.dtype(), weight.dtype(), seed, is_rms, dropout, epsilon);
  const Tensor dense_x0 = dense(x0), dense_weight = dense(weight), dense_rowscale = dense(rowscale),
               dense_layerscale = dense(layerscale), dense_pre = dense(pre);
  const Tensor dense_out_grad = out_grad.defined() ? dense(out_grad) : out_grad;
  const Tensor dense_pre_grad = pre_grad.defined() ? dense(pre_grad) : pre_grad;
  p.x0 = dense_x0.data();
  p.weight = dense_weight.data();
  p.rowscale = has.rowscale ? dense_rowscale.data() : nullptr;
  p.layerscale = has.layerscale ? dense_layerscale.data() : nullptr;

  // A missing input has no gradient, but autograd requires a tensor in its place, so it is zeros.
  const auto gradient = [&](bool present, const Shape& shape, DataType dtype) {
    return present ? paddle::empty(shape, dtype, x0.place()) : paddle::zeros(weight.shape(), dtype, x0.place());
  };
  Tensor x0_grad = gradient(true, x0.shape(), x0.dtype());
  Tensor residual_grad = gradient(has.residual, x0.shape(), pre.dtype());
  Tensor weight_grad = gradient(true, weight.shape(), weight.dtype());
  Tensor bias_grad = gradient(has.bias, weight.shape(), weight.dtype());
  Tensor rowscale_grad = gradient(has.rowscale, rowscale_shape(x0.shape()), x0.dtype());
  Tensor layerscale_grad = gradient(has.layerscale, weight.shape(), x0.dtype());
  kernels::dropout_add_norm_backward(
      p, out_grad.defined() ? dense_out_grad.data() : nullptr, pre_grad.defined() ? dense_pre_grad.data() : nullptr,
      dense_pre.data(), mean.data<float>(), rstd.data<float>(),
      {x0_grad.data(), has.residual ? residual_grad.data() : nullptr, weight_grad.data(),
       has.bias ? bias_grad.data() : nullptr, has.rowscale ? rowscale_grad.data() : nullptr,
       has.layerscale ? layerscale_grad.data() : nullptr});
  return {x0_grad, residual_grad, weight_grad, bias_grad, rowscale_grad, layerscale_grad};
}

std::vector<Shape> infer_shapes(const Shape& x0, const Shape& /*residual*/, const Shape& /*weight*/,
                                const Shape& /*bias*/, const Shape& /*rowscale*/, const Shape& /*layerscale*/,
                                const Shape& /*seed*/, int64_t /*has*/, bool /*is_rms*/, float /*dropout*/,
                                float /*epsilon*/, bool with_mask) {
  return {x0, x0, with_mask ? x0 : Shape{0}, one_per_row(x0), one_per_row(x0)};
}
std::vector<DataType> infer_dtypes(const DataType& x0, const DataType& residual, const DataType& /*weight*/,
                                   const DataType& /*bias*/, const DataType& /*rowscale*/,
                                   const DataType& /*layerscale*/, const DataType& /*seed*/, int64_t has_bits,
                                   bool /*is_rms*/, float /*dropout*/, float /*epsilon*/, bool /*with_mask*/) {
  return {x0, Has(has_bits).residual ? residual : x0, DataType::BOOL, DataType::FLOAT32, DataType::FLOAT32};
}

std::vector<Shape> infer_gradient_shapes(const Shape& /*out_grad*/, const Shape& /*pre_grad*/, const Shape& x0,
                                         const Shape& weight, const Shape& /*rowscale*/, const Shape& /*layerscale*/,
                                         const Shape& /*seed*/, const Shape& /*pre*/, const Shape& /*mean*/,
                                         const Shape& /*rstd*/, int64_t has_bits, bool /*is_rms*/, float /*dropout*/,
                                         float /*epsilon*/) {
  const Has has(has_bits);
  return {x0, has.residual ? x0 : weight, weight, weight, has.rowscale ? rowscale_shape(x0) : weight, weight};
}

std::vector<DataType> infer_gradient_dtypes(const DataType& /*out_grad*/, const DataType& /*pre_grad*/,
                                            const DataType& x0, const DataType& weight, const DataType& /*rowscale*/,
                                            const DataType& /*layerscale*/, const DataType& /*seed*/,
                                            const DataType& pre, const DataType& /*mean*/, const DataType& /*rstd*/,
                                            int64_t /*has*/, bool /*is_rms*/, float /*dropout*/, float /*epsilon*/) {
  return {x0, pre, weight, weight, x0, x0};
}

}  // namespace
}  // namespace paddle_fused::ops::dropout_add_norm

PD_BUILD_OP(pf_dropout_add_norm)
    .Inputs({"x0", "residual", "weight", "bias", "rowscale", "layerscale", "seed"})
    .Outputs({"out", "pre", "mask", "mean", "rstd"})
    .Attrs({"has: int64_t", "is_rms: bool", "dropout: float", "epsilon: float", "with_mask: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::dropout_add_norm::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::dropout_add_norm::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::dropout_add_norm::infer_dtypes));

PD_BUILD_GRAD_OP(pf_dropout_add_norm)
    .Inputs({paddle::Grad("out"), paddle::Grad("pre"), "x0", "weight", "rowscale", "layerscale", "seed", "pre", "mean",
             "rstd"})
    .Outputs({paddle::Grad("x0"), paddle::Grad("residual"), paddle::Grad("weight"), paddle::Grad("bias"),
              paddle::Grad("rowscale"), paddle::Grad("layerscale")})
    .Attrs({"has: int64_t", "is_rms: bool", "dropout: float", "epsilon: float"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::dropout_add_norm::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::dropout_add_norm::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::dropout_add_norm::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_dropout_add_norm, "x0", "out");
