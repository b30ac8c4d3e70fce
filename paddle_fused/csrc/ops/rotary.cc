// pf_rotary(x, cos, sin; interleave, angle_gradients) -> y: kernels/rotary as an operator.
//
// x: [., ., ., D], or [., ., D] for packed sequences; cos, sin: x's rank, each leading dimension x's or 1.
// angle_gradients: whether cos or sin need gradients. Otherwise their gradients are zeros; they are still outputs,
// because Paddle's backward pass under auto-parallel requires one per input.
#include "kernels/attention/rotary.h"

#include "ops/operator.h"

namespace paddle_fused::ops::rotary {
namespace {

constexpr char kOp[] = "pf_rotary";

void check_shapes(const Shape& x, const Shape& cos, const Shape& sin) {
  if (x.size() < 3 || x.size() > 4 || x.back() % 2 != 0)
    refuse(kOp, "x has shape " + text(x) + "; accepted: three or four dimensions, the last one even.");
  bool fits = cos == sin && cos.size() == x.size() && cos.back() == x.back();
  for (size_t d = 0; fits && d + 1 < x.size(); ++d) fits = cos[d] == 1 || cos[d] == x[d];
  if (!fits)
    refuse(kOp, "x has shape " + text(x) + ", cos " + text(cos) + " and sin " + text(sin) +
                    "; accepted: cos and sin of equal shape with x's last dimension; other dimensions are x's or 1.");
}

void check(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_places(kOp, {{"x", x}, {"cos", cos}, {"sin", sin}});
  check_float(kOp, {"x", x});
  check_same_dtype(kOp, {{"x", x}, {"cos", cos}, {"sin", sin}});
  check_shapes(x.shape(), cos.shape(), sin.shape());
}

// A tensor of rank 3 is treated as rank 4 with a leading dimension of 1.
std::vector<int64_t> of_rank_4(const Shape& shape) {
  return shape.size() == 4 ? shape : Shape{1, shape[0], shape[1], shape[2]};
}

kernels::RotaryShape shape_of(const Tensor& x, const Tensor& cos, bool interleave) {
  const Shape dims = of_rank_4(x.shape()), angles = of_rank_4(cos.shape());
  return {{dims[0], dims[1], dims[2]},
          {angles[0], angles[1], angles[2]},
          dims[3],
          interleave ? kernels::RotaryMode::kInterleave : kernels::RotaryMode::kHalf};
}

std::vector<Tensor> forward(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleave,
                            bool /*angle_gradients*/) {
  check(x, cos, sin);
  const HostCall call(kOp, x);
  Tensor y = paddle::empty(x.shape(), x.dtype(), x.place());
  const Tensor input = dense(x), cosines = dense(cos), sines = dense(sin);
  if (x.numel() > 0)
    kernels::rotary_forward(element_type(x.dtype()), shape_of(x, cos, interleave), input.data(), cosines.data(),
                            sines.data(), y.data());
  return {y};
}

std::vector<Tensor> backward(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& dy, bool interleave,
                             bool angle_gradients) {
  check(x, cos, sin);
  check_gradient(kOp, {"the gradient of y", dy}, {"x", x}, x.shape());
  const HostCall call("pf_rotary_grad", x);
  Tensor dx = paddle::empty(x.shape(), x.dtype(), x.place());
  const auto allocate = [&](const Tensor& like) {
    return angle_gradients ? paddle::empty(like.shape(), like.dtype(), like.place())
                           : paddle::zeros(like.shape(), like.dtype(), like.place());
  };
  Tensor dcos = allocate(cos), dsin = allocate(sin);
  const Tensor input = dense(x), gradient = dense(dy), cosines = dense(cos), sines = dense(sin);
  const kernels::RotaryShape shape = shape_of(x, cos, interleave);
  if (x.numel() > 0)
    kernels::rotary_backward(element_type(x.dtype()), shape, gradient.data(), cosines.data(), sines.data(), dx.data());
  if (angle_gradients && cos.numel() > 0)
    kernels::rotary_angle_gradients(element_type(x.dtype()), shape, input.data(), gradient.data(), dcos.data(),
                                    dsin.data());
  return {dx, dcos, dsin};
}

// Paddle 3.3.1 terminates the process if this throws while a program is captured, so invalid inputs are rejected at
// run time.
std::vector<Shape> infer_shapes(const Shape& x, const Shape& /*cos*/, const Shape& /*sin*/, bool /*interleave*/,
                                bool /*angle_gradients*/) {
  return {x};
}
std::vector<DataType> infer_dtypes(const DataType& x, const DataType& /*cos*/, const DataType& /*sin*/) {
  return {x};
}

std::vector<Shape> infer_gradient_shapes(const Shape& x, const Shape& cos, const Shape& sin, const Shape& /*dy*/,
                                         bool /*interleave*/, bool /*angle_gradients*/) {
  return {x, cos, sin};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& x, const DataType& cos, const DataType& sin,
                                            const DataType& /*dy*/) {
  return {x, cos, sin};
}

}  // namespace
}  // namespace paddle_fused::ops::rotary

PD_BUILD_OP(pf_rotary)
    .Inputs({"x", "cos", "sin"})
    .Outputs({"y"})
    .Attrs({"interleave: bool", "angle_gradients: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::rotary::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::rotary::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::rotary::infer_dtypes));

PD_BUILD_GRAD_OP(pf_rotary)
    .Inputs({"x", "cos", "sin", paddle::Grad("y")})
    .Outputs({paddle::Grad("x"), paddle::Grad("cos"), paddle::Grad("sin")})
    .Attrs({"interleave: bool", "angle_gradients: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::rotary::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::rotary::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::rotary::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_rotary, "x", "y");
