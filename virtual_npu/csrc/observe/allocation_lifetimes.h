// Lifetimes of the device's allocations, for the journal.
#pragma once
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// Journals the tensor's memory from now on until the last tensor that holds it is gone, unless it is tracked already. For
// tensors to which a kernel has given memory; `by` is the operator. Returns whether the allocation is new: memory of the
// host never is.
bool track_lifetime(phi::DenseTensor* tensor, const std::string& by);

}  // namespace virtual_npu
