// What the host operators (pf_...) share: checks of their arguments, and the record of their calls.
//
// A host operator computes on tensors in the host's memory: those of the CPU place and of the virtual NPU. Its checks
// throw phi's InvalidArgument, which reaches Python as ValueError. The public functions in Python explain more; the
// checks here keep any call, however wrong, from reading memory that is not its own.
#pragma once
#include <initializer_list>
#include <string>

#include "framework/element_type.h"
#include "framework/paddle_release.h"
#include "framework/tensors.h"

namespace paddle_fused::ops {

using paddle::DataType;
using paddle::Tensor;
using Shape = std::vector<int64_t>;

struct Argument {
  const char* name;
  const Tensor& tensor;
};

// Throws InvalidArgument("<op>: <sentence>").
[[noreturn]] void refuse(const char* op, const std::string& sentence);

// No argument is missing (None in Python).
void check_defined(const char* op, std::initializer_list<Argument> arguments);

// No argument is missing, all are on one device, and its memory is the host's.
void check_places(const char* op, std::initializer_list<Argument> arguments);

// The argument is float32, bfloat16 or float16.
void check_float(const char* op, const Argument& argument);

// The arguments all have the dtype of the first.
void check_same_dtype(const char* op, std::initializer_list<Argument> arguments);

// A gradient that autograd handed in: on the device of `like`, of its dtype, and of `shape`, its output's.
void check_gradient(const char* op, const Argument& gradient, const Argument& like, const Shape& shape);

// A tensor of this shape can be: 64 bits count its bytes. An empty input may have huge sizes.
void check_size(const char* op, const Shape& shape);

// Memory for the gradient of `tensor`, or no elements if it is not wanted: Paddle takes no missing gradient.
Tensor empty_if(bool wanted, const Tensor& tensor);

// An operator whose gradient has no gradient. Without this, Paddle ends the graph there in silence: with create_graph=True
// a second derivative is missing, and x.grad stays None. `input` is differentiable and `output` has a gradient.
[[noreturn]] void refuse_second_derivative(const char* op);
#define PF_FIRST_DERIVATIVE_ONLY(op, input, output)                                                \
  namespace paddle_fused::ops::second_derivative {                                                 \
  static std::vector<Tensor> op(const Tensor& /*ddx*/) { refuse_second_derivative(#op); }           \
  static std::vector<Shape> op##_shapes(const Shape& ddx) { return {ddx}; }                        \
  static std::vector<DataType> op##_dtypes(const DataType& ddx) { return {ddx}; }                  \
  }                                                                                                \
  PD_BUILD_DOUBLE_GRAD_OP(op)                                                                      \
      .Inputs({paddle::Grad(paddle::Grad(input))})                                                 \
      .Outputs({paddle::Grad(paddle::Grad(output))})                                               \
      .SetKernelFn(PD_KERNEL(paddle_fused::ops::second_derivative::op))                            \
      .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::second_derivative::op##_shapes))          \
      .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::second_derivative::op##_dtypes))

// Counts a call on an npu tensor in the virtual NPU's record, as work of the host: a card has no such operator. Nested
// calls are not counted. Does nothing for tensors of the CPU place.
class HostCall {
 public:
  // `inputs`: those whose sizes say how much work it is.
  HostCall(const char* op, std::initializer_list<Tensor> inputs);
  HostCall(const char* op, const Tensor& tensor) : HostCall(op, {tensor}) {}
  ~HostCall();
  HostCall(const HostCall&) = delete;

 private:
  bool counted_;
};

}  // namespace paddle_fused::ops
