// Lifetimes of device allocations, for the journal.
#pragma once
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// Journals the lifetime of the tensor's memory until the last tensor releases it, unless it is already tracked. For
// memory that a kernel has allocated; `by` is the operator. Returns whether the allocation is new, which host memory
// never is.
bool track_lifetime(phi::DenseTensor* tensor, const std::string& by);

}  // namespace virtual_npu
