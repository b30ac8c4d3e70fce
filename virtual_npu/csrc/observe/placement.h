// Where a machine with a card would run a kernel.
#pragma once
#include <cstdint>
#include <string>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

// On the NPU's cores, on its AICPU (double precision and a few integer kernels), or on the host if paddle-custom-npu
// registers no kernel of this name and type.
enum class Placement : uint8_t { kNpu, kAicpu, kHost };
Placement placement_of(const std::string& name, phi::DataType dtype);
const char* placement_name(Placement placement);

// float64 or complex128, which a card's cores do not support.
inline bool is_double_precision(phi::DataType dtype) {
  return dtype == phi::DataType::FLOAT64 || dtype == phi::DataType::COMPLEX128;
}

// A kernel may support every dtype with one entry: "any".
std::string dtype_name(phi::DataType dtype);

}  // namespace virtual_npu
