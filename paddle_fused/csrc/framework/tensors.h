// Paddle's tensors for operators: as text for messages, and dense for kernels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/api/all.h"

namespace paddle_fused {

// "[2, 16, 4, 64]", "bfloat16", "npu:0": as they are printed in Python.
std::string text(const std::vector<int64_t>& shape);
std::string text(paddle::DataType dtype);
std::string text(const phi::Place& place);

// The tensor itself when its memory is dense and in order, a dense copy otherwise.
paddle::Tensor dense(const paddle::Tensor& tensor);

}  // namespace paddle_fused
