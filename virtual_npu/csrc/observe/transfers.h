// What was sent between processes by resharding and by the collectives of static programs.
#pragma once
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// Counts a collective that the process is about to call with `sent`; `kind` is a string literal. Send and receive count at
// the sender, as do a broadcast at its root and a reduce everywhere else: who only receives has sent nothing.
void count_transfer(const char* kind, int processes, const phi::DenseTensor& sent);

}  // namespace virtual_npu
