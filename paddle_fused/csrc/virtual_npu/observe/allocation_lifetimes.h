// The lives of the device's allocations, for the journal.
#pragma once
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// Journals the tensor's memory from now on, until the last tensor that holds it is gone, unless that is done already. For
// the tensors that a kernel has given memory; `by` is the operator. Returns whether the life begins: it does not for
// memory of the host.
bool journal_life(phi::DenseTensor* tensor, const std::string& by);

}  // namespace virtual_npu
