// What every operator under an upstream name checks before it computes. Each check throws phi's InvalidArgument, which
// reaches Python as ValueError; the sentence says what came, what is accepted and what to do, and ends with the number
// CANN answers with on a card where its documents name one.
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

// Throws InvalidArgument("<op>: <sentence>"), for what no rule of CANN or of the plugin is about.
[[noreturn]] void refuse(const char* op, const std::string& sentence);

// All arguments are on one and the same npu device. The message lists each argument with its place.
void check_places(const char* op, std::initializer_list<Argument> arguments);

[[noreturn]] void refuse_dtype(const contract::Rule& rule, const char* op, const Argument& argument);

// The argument's dtype is one of `accepted`, as `rule` says.
template <size_t N>
void check_dtype(const contract::Rule& rule, const char* op, const Argument& argument,
                 const paddle::DataType (&accepted)[N]) {
  for (paddle::DataType dtype : accepted)
    if (argument.tensor.dtype() == dtype) return;
  refuse_dtype(rule, op, argument);
}

// The arguments all have the dtype of the first, as `rule` says.
void check_same_dtype(const contract::Rule& rule, const char* op, std::initializer_list<Argument> arguments);

// A gradient is on the device of what it is the gradient of, and has its dtype and shape.
void check_gradient(const char* op, const Argument& tensor, const Argument& gradient);

}  // namespace virtual_npu
