// Gated activations: <op>(gate, up) -> a(gate) * up, and <op>_halves(x) with gate and up in x's last dimension.
// kernels/gated as operators, one per activation. Neither form concatenates or splits tensors.
#include "kernels/elementwise/gated.h"

#include "ops/operator.h"

namespace paddle_fused::ops::gated {
namespace {

using kernels::Activation;

std::string gradient_of(const char* op) { return std::string(op) + "_grad"; }

// ---- two tensors

void check(const char* op, const Tensor& gate, const Tensor& up) {
  check_places(op, {{"gate", gate}, {"up", up}});
  check_float(op, {"gate", gate});
  check_same_dtype(op, {{"gate", gate}, {"up", up}});
  if (gate.shape() != up.shape())
    refuse(op, "gate has shape " + text(gate.shape()) + " and up " + text(up.shape()) +
                   "; accepted: the same shape. Reshape one.");
}

// Two dense tensors form one long row.
kernels::GatedShape shape_of(const Tensor& gate) { return {1, gate.numel(), gate.numel()}; }

std::vector<Tensor> forward(const char* op, Activation activation, const Tensor& gate, const Tensor& up) {
  check(op, gate, up);
  const HostCall call(op, gate);
  Tensor y = paddle::empty(gate.shape(), gate.dtype(), gate.place());
  if (gate.numel() == 0) return {y};
  const Tensor dense_gate = dense(gate), dense_up = dense(up);
  kernels::gated_forward(activation, element_type(gate.dtype()), shape_of(gate), dense_gate.data(), dense_up.data(),
                         y.data());
  return {y};
}

std::vector<Tensor> backward(const char* op, Activation activation, const Tensor& gate, const Tensor& up,
                             const Tensor& dy) {
  check(op, gate, up);
  check_gradient(op, {"the gradient of y", dy}, {"gate", gate}, gate.shape());
  const HostCall call(gradient_of(op).c_str(), gate);
  Tensor dgate = paddle::empty(gate.shape(), gate.dtype(), gate.place());
  Tensor dup = paddle::empty(up.shape(), up.dtype(), up.place());
  if (gate.numel() == 0) return {dgate, dup};
  const Tensor dense_gate = dense(gate), dense_up = dense(up), gradient = dense(dy);
  kernels::gated_backward(activation, element_type(gate.dtype()), shape_of(gate), dense_gate.data(), dense_up.data(),
                          gradient.data(), dgate.data(), dup.data());
  return {dgate, dup};
}

std::vector<Shape> infer_shapes(const Shape& gate, const Shape& /*up*/) { return {gate}; }
std::vector<DataType> infer_dtypes(const DataType& gate, const DataType& /*up*/) { return {gate}; }

std::vector<Shape> infer_gradient_shapes(const Shape& gate, const Shape& up, const Shape& /*dy*/) {
  return {gate, up};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& gate, const DataType& up, const DataType& /*dy*/) {
  return {gate, up};
}

// ---- the two halves of one tensor

// Paddle 3.3.1 terminates the process if this throws while a program is captured, so invalid inputs are rejected at
// run time.
Shape half_of(Shape x) {
  if (!x.empty() && x.back() > 0) x.back() /= 2;
  return x;
}

void check_halves(const char* op, const Tensor& x) {
  check_places(op, {{"x", x}});
  check_float(op, {"x", x});
  const Shape shape = x.shape();
  if (shape.empty() || shape.back() % 2 != 0)
    refuse(op, "x has shape " + text(shape) + "; accepted: an even last dimension, which contains both halves.");
}

// Rows of x, each with gate first, then up.
kernels::GatedShape halves_of(const Tensor& x) {
  const int64_t last = x.shape().back();
  return {x.numel() / last, last / 2, last};
}

const void* second_half(const Tensor& x) {
  return static_cast<const char*>(x.data()) + x.shape().back() / 2 * phi::SizeOf(x.dtype());
}

std::vector<Tensor> forward_halves(const char* op, Activation activation, const Tensor& x) {
  check_halves(op, x);
  const HostCall call(op, x);
  Tensor y = paddle::empty(half_of(x.shape()), x.dtype(), x.place());
  if (x.numel() == 0) return {y};
  const Tensor both = dense(x);
  kernels::gated_forward(activation, element_type(x.dtype()), halves_of(x), both.data(), second_half(both), y.data());
  return {y};
}

std::vector<Tensor> backward_halves(const char* op, Activation activation, const Tensor& x, const Tensor& dy) {
  check_halves(op, x);
  check_gradient(op, {"the gradient of y", dy}, {"x", x}, half_of(x.shape()));
  const HostCall call(gradient_of(op).c_str(), x);
  Tensor dx = paddle::empty(x.shape(), x.dtype(), x.place());
  if (x.numel() == 0) return {dx};
  const Tensor both = dense(x), gradient = dense(dy);
  kernels::gated_backward(activation, element_type(x.dtype()), halves_of(x), both.data(), second_half(both),
                          gradient.data(), dx.data(), const_cast<void*>(second_half(dx)));
  return {dx};
}

std::vector<Shape> infer_half_shapes(const Shape& x) { return {half_of(x)}; }
std::vector<DataType> infer_half_dtypes(const DataType& x) { return {x}; }
std::vector<Shape> infer_halves_gradient_shapes(const Shape& x, const Shape& /*dy*/) { return {x}; }
std::vector<DataType> infer_halves_gradient_dtypes(const DataType& x, const DataType& /*dy*/) { return {x}; }

}  // namespace
}  // namespace paddle_fused::ops::gated

#define PF_GATED_OPERATOR(activation, op)                                                                     \
  namespace paddle_fused::ops::gated {                                                                        \
  static std::vector<Tensor> op(const Tensor& gate, const Tensor& up) {                                       \
    return forward(#op, Activation::k##activation, gate, up);                                                 \
  }                                                                                                           \
  static std::vector<Tensor> op##_grad(const Tensor& gate, const Tensor& up, const Tensor& dy) {              \
    return backward(#op, Activation::k##activation, gate, up, dy);                                            \
  }                                                                                                           \
  static std::vector<Tensor> op##_halves(const Tensor& x) {                                                   \
    return forward_halves(#op "_halves", Activation::k##activation, x);                                       \
  }                                                                                                           \
  static std::vector<Tensor> op##_halves_grad(const Tensor& x, const Tensor& dy) {                            \
    return backward_halves(#op "_halves", Activation::k##activation, x, dy);                                  \
  }                                                                                                           \
  }                                                                                                           \
  PD_BUILD_OP(op)                                                                                             \
      .Inputs({"gate", "up"})                                                                                 \
      .Outputs({"y"})                                                                                         \
      .SetKernelFn(PF_KERNEL(paddle_fused::ops::gated::op))                                                   \
      .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::gated::infer_shapes))                                \
      .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::gated::infer_dtypes));                               \
  PD_BUILD_GRAD_OP(op)                                                                                        \
      .Inputs({"gate", "up", paddle::Grad("y")})                                                              \
      .Outputs({paddle::Grad("gate"), paddle::Grad("up")})                                                    \
      .SetKernelFn(PF_KERNEL(paddle_fused::ops::gated::op##_grad))                                            \
      .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::gated::infer_gradient_shapes))                       \
      .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::gated::infer_gradient_dtypes));                      \
  PF_FIRST_DERIVATIVE_ONLY(op, "gate", "y");                                                                  \
  PD_BUILD_OP(op##_halves)                                                                                    \
      .Inputs({"x"})                                                                                          \
      .Outputs({"y"})                                                                                         \
      .SetKernelFn(PF_KERNEL(paddle_fused::ops::gated::op##_halves))                                          \
      .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::gated::infer_half_shapes))                           \
      .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::gated::infer_half_dtypes));                          \
  PD_BUILD_GRAD_OP(op##_halves)                                                                               \
      .Inputs({"x", paddle::Grad("y")})                                                                       \
      .Outputs({paddle::Grad("x")})                                                                           \
      .SetKernelFn(PF_KERNEL(paddle_fused::ops::gated::op##_halves_grad))                                     \
      .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::gated::infer_halves_gradient_shapes))                \
      .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::gated::infer_halves_gradient_dtypes));               \
  PF_FIRST_DERIVATIVE_ONLY(op##_halves, "x", "y");

PF_ACTIVATIONS(PF_GATED_OPERATOR)
