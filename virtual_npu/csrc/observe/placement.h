// Where a machine with a card would run a kernel.
#pragma once
#include <cstdint>
#include <string>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

// On the NPU's cores, on its AICPU (double precision, and a few kernels of integers), or, as paddle-custom-npu registers
// no kernel of that name and type, on the host.
enum class Placement : uint8_t { kNpu, kAicpu, kHost };
Placement placement_of(const std::string& name, phi::DataType dtype);
const char* placement_name(Placement placement);

// float64 or complex128, which a card's cores do not compute.
inline bool is_double_precision(phi::DataType dtype) {
  return dtype == phi::DataType::FLOAT64 || dtype == phi::DataType::COMPLEX128;
}

// A kernel may serve every dtype with one entry: "any".
std::string dtype_name(phi::DataType dtype);

}  // namespace virtual_npu
