// What every operator under an upstream name checks before it computes. Each check throws phi's InvalidArgument, which
// reaches Python as ValueError; the sentence says what came, what is accepted and what to do, and ends with the number
// CANN answers with on a card where its documents name one.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "paddle/phi/api/all.h"

namespace virtual_npu {

enum class CannError {
  kNone = 0,               // refused before CANN would see it
  kParamNullptr = 161001,  // a required tensor is missing
  kParamInvalid = 161002,  // dtype, format or attribute outside the documented set
  kTiling = 561002,        // shapes that the kernel cannot be tiled for
};

struct Argument {
  const char* name;
  const paddle::Tensor& tensor;
};

// Throws InvalidArgument("<op>: <sentence> (CANN error <number>, <its name>)").
[[noreturn]] void refuse(const char* op, const std::string& sentence, CannError error = CannError::kNone);

// All arguments are on one and the same npu device. The message lists each argument with its place.
void check_places(const char* op, std::initializer_list<Argument> arguments);

// The argument's dtype is one of `accepted`.
void check_dtype(const char* op, const Argument& argument, std::initializer_list<paddle::DataType> accepted);

// The arguments all have the dtype of the first.
void check_same_dtype(const char* op, std::initializer_list<Argument> arguments);

// "[2, 16, 4, 64]", "bfloat16", "npu:0": as they are printed in Python.
std::string text(const std::vector<int64_t>& shape);
std::string text(paddle::DataType dtype);
std::string text(const phi::Place& place);

// The tensor itself when its memory is dense and in order, a dense copy otherwise.
paddle::Tensor dense(const paddle::Tensor& tensor);

}  // namespace virtual_npu
