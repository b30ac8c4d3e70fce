#pragma once
#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// The values of an integer tensor (labels, ids) as int64. Throws InvalidArgument with `what` as the tensor's name for
// other dtypes.
std::vector<int64_t> integer_values(const phi::DenseTensor& tensor, const char* what);

}  // namespace virtual_npu
