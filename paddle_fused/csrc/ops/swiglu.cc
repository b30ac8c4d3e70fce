// pf_swiglu(gate, up) -> y and pf_swiglu_halves(x) -> y, x's last dimension holding gate and up: kernels/swiglu as
// operators. Neither joins or splits anything.
#include "kernels/elementwise/swiglu.h"

#include "ops/operator.h"

namespace paddle_fused::ops {
namespace {

constexpr char kOp[] = "pf_swiglu", kHalvesOp[] = "pf_swiglu_halves";

// ---- two tensors

void check(const Tensor& gate, const Tensor& up) {
  check_places(kOp, {{"gate", gate}, {"up", up}});
  check_float(kOp, {"gate", gate});
  check_same_dtype(kOp, {{"gate", gate}, {"up", up}});
  if (gate.shape() != up.shape())
    refuse(kOp, "gate has shape " + text(gate.shape()) + " and up " + text(up.shape()) +
                    "; accepted: the same shape. Reshape one.");
}

// Two dense tensors are one long row.
kernels::SwigluShape shape_of(const Tensor& gate) { return {1, gate.numel(), gate.numel()}; }

std::vector<Tensor> forward(const Tensor& gate, const Tensor& up) {
  check(gate, up);
  const HostCall call(kOp, gate);
  Tensor y = paddle::empty(gate.shape(), gate.dtype(), gate.place());
  if (gate.numel() == 0) return {y};
  const Tensor dense_gate = dense(gate), dense_up = dense(up);
  kernels::swiglu_forward(element_type(gate.dtype()), shape_of(gate), dense_gate.data(), dense_up.data(), y.data());
  return {y};
}

std::vector<Tensor> backward(const Tensor& gate, const Tensor& up, const Tensor& dy) {
  check(gate, up);
  check_gradient(kOp, {"the gradient of y", dy}, {"gate", gate}, gate.shape());
  const HostCall call("pf_swiglu_grad", gate);
  Tensor dgate = paddle::empty(gate.shape(), gate.dtype(), gate.place());
  Tensor dup = paddle::empty(up.shape(), up.dtype(), up.place());
  if (gate.numel() == 0) return {dgate, dup};
  const Tensor dense_gate = dense(gate), dense_up = dense(up), gradient = dense(dy);
  kernels::swiglu_backward(element_type(gate.dtype()), shape_of(gate), dense_gate.data(), dense_up.data(),
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

// Paddle 3.3.1 ends the process if this throws while a program is captured: what does not fit is refused when it runs.
Shape half_of(Shape x) {
  if (!x.empty() && x.back() > 0) x.back() /= 2;
  return x;
}

void check_halves(const Tensor& x) {
  check_places(kHalvesOp, {{"x", x}});
  check_float(kHalvesOp, {"x", x});
  const Shape shape = x.shape();
  if (shape.empty() || shape.back() % 2 != 0)
    refuse(kHalvesOp, "x has shape " + text(shape) + "; accepted: an even last dimension, which holds both halves.");
}

// Rows of x, each with gate and then up.
kernels::SwigluShape halves_of(const Tensor& x) {
  const int64_t last = x.shape().back();
  return {x.numel() / last, last / 2, last};
}

const void* second_half(const Tensor& x) {
  return static_cast<const char*>(x.data()) + x.shape().back() / 2 * phi::SizeOf(x.dtype());
}

std::vector<Tensor> forward_halves(const Tensor& x) {
  check_halves(x);
  const HostCall call(kHalvesOp, x);
  Tensor y = paddle::empty(half_of(x.shape()), x.dtype(), x.place());
  if (x.numel() == 0) return {y};
  const Tensor both = dense(x);
  kernels::swiglu_forward(element_type(x.dtype()), halves_of(x), both.data(), second_half(both), y.data());
  return {y};
}

std::vector<Tensor> backward_halves(const Tensor& x, const Tensor& dy) {
  check_halves(x);
  check_gradient(kHalvesOp, {"the gradient of y", dy}, {"x", x}, half_of(x.shape()));
  const HostCall call("pf_swiglu_halves_grad", x);
  Tensor dx = paddle::empty(x.shape(), x.dtype(), x.place());
  if (x.numel() == 0) return {dx};
  const Tensor both = dense(x), gradient = dense(dy);
  kernels::swiglu_backward(element_type(x.dtype()), halves_of(x), both.data(), second_half(both), gradient.data(),
                           dx.data(), const_cast<void*>(second_half(dx)));
  return {dx};
}

std::vector<Shape> infer_half_shapes(const Shape& x) { return {half_of(x)}; }
std::vector<DataType> infer_half_dtypes(const DataType& x) { return {x}; }
std::vector<Shape> infer_halves_gradient_shapes(const Shape& x, const Shape& /*dy*/) { return {x}; }
std::vector<DataType> infer_halves_gradient_dtypes(const DataType& x, const DataType& /*dy*/) { return {x}; }

}  // namespace
}  // namespace paddle_fused::ops

PD_BUILD_OP(pf_swiglu)
    .Inputs({"gate", "up"})
    .Outputs({"y"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_dtypes));

PD_BUILD_GRAD_OP(pf_swiglu)
    .Inputs({"gate", "up", paddle::Grad("y")})
    .Outputs({paddle::Grad("gate"), paddle::Grad("up")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_gradient_dtypes));

PD_BUILD_OP(pf_swiglu_halves)
    .Inputs({"x"})
    .Outputs({"y"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::forward_halves))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_half_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_half_dtypes));

PD_BUILD_GRAD_OP(pf_swiglu_halves)
    .Inputs({"x", paddle::Grad("y")})
    .Outputs({paddle::Grad("x")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::backward_halves))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_halves_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_halves_gradient_dtypes));
