// Helpers for Paddle tensors in operators: text for messages, dense tensors for kernels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/api/all.h"

namespace paddle_fused {

// "[2, 16, 4, 64]", "bfloat16", "npu:0": the format of Python.
std::string text(const std::vector<int64_t>& shape);
std::string text(paddle::DataType dtype);
std::string text(const phi::Place& place);

// The tensor itself if it is dense and row-major, otherwise a dense copy.
paddle::Tensor dense(const paddle::Tensor& tensor);

}  // namespace paddle_fused
