// Data sent between processes by resharding and by the collectives of static programs.
#pragma once
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// Counts a collective that the process is about to call with `sent`. `kind` is a string literal. Only senders count:
// a transfer at its sender, a broadcast at its root, a reduce on all ranks except its root.
void count_transfer(const char* kind, int processes, const phi::DenseTensor& sent);

}  // namespace virtual_npu
