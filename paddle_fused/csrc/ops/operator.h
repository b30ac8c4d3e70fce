// Shared by the host operators (pf_...): argument checks and the record of their calls.
//
// A host operator computes on tensors in host memory: on the CPU place and on the virtual NPU. Its checks throw phi's
// InvalidArgument, a ValueError in Python. The public Python functions have more detailed messages; these checks keep
// invalid calls from accessing foreign memory.
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

// Checks that no argument is missing (None in Python).
void check_defined(const char* op, std::initializer_list<Argument> arguments);

// Checks that no argument is missing and that all are on one device with host memory.
void check_places(const char* op, std::initializer_list<Argument> arguments);

// Checks that the argument is float32, bfloat16 or float16.
void check_float(const char* op, const Argument& argument);

// Checks that all arguments have the dtype of the first.
void check_same_dtype(const char* op, std::initializer_list<Argument> arguments);

// Checks a gradient from autograd: on the device and in the dtype of `like`, with `shape`, the shape of its output.
void check_gradient(const char* op, const Argument& gradient, const Argument& like, const Shape& shape);

// Checks that the byte count of a tensor with this shape fits in 64 bits. An empty input may have huge sizes.
void check_size(const char* op, const Shape& shape);

// Memory for the gradient of `tensor`, or an empty tensor if it is not needed: Paddle requires every gradient.
Tensor empty_if(bool wanted, const Tensor& tensor);

// For an operator whose gradient is not differentiable. Without this, Paddle silently ends the graph there: with
// create_graph=True, a second derivative is missing and x.grad stays None. `input` must be differentiable.
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

// Counts a call on an npu tensor in the virtual NPU's record as host work, because a card does not have the operator.
// Nested calls are not counted. Does nothing for tensors on the CPU place.
class HostCall {
 public:
  // `inputs`: tensors whose sizes represent the amount of work.
  HostCall(const char* op, std::initializer_list<Tensor> inputs);
  HostCall(const char* op, const Tensor& tensor) : HostCall(op, {tensor}) {}
  ~HostCall();
  HostCall(const HostCall&) = delete;

 private:
  bool counted_;
};

}  // namespace paddle_fused::ops
