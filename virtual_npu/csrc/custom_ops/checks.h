// Argument checks for every operator with an upstream name. Each check throws phi's InvalidArgument, a ValueError in
// Python. The message states the value received, the accepted values and the fix, and ends with CANN's error number
// if the CANN documentation specifies one.
#pragma once
#include <initializer_list>
#include <string>

#include "framework/tensors.h"
#include "custom_ops/contract.h"

namespace virtual_npu {

using paddle_fused::dense;
using paddle_fused::text;

struct Argument {
  const char* name;
  const paddle::Tensor& tensor;
};

// Throws InvalidArgument("<op>: <came>; accepted: <accepts>. <advice> (CANN error <number>, <its name>)").
[[noreturn]] void refuse(const contract::Rule& rule, const char* op, const std::string& came);

// Throws InvalidArgument("<op>: <sentence>") for errors without a rule of CANN or of the plugin.
[[noreturn]] void refuse(const char* op, const std::string& sentence);

// Checks that all arguments are on the same npu device. The message lists each argument with its place.
void check_places(const char* op, std::initializer_list<Argument> arguments);

[[noreturn]] void refuse_dtype(const contract::Rule& rule, const char* op, const Argument& argument);

// Checks that the argument's dtype is one of `accepted`, according to `rule`.
template <size_t N>
void check_dtype(const contract::Rule& rule, const char* op, const Argument& argument,
                 const paddle::DataType (&accepted)[N]) {
  for (paddle::DataType dtype : accepted)
    if (argument.tensor.dtype() == dtype) return;
  refuse_dtype(rule, op, argument);
}

// Checks that all arguments have the dtype of the first, according to `rule`.
void check_same_dtype(const contract::Rule& rule, const char* op, std::initializer_list<Argument> arguments);

// Checks that a gradient has the device, dtype and shape of its forward tensor.
void check_gradient(const char* op, const Argument& tensor, const Argument& gradient);

}  // namespace virtual_npu
