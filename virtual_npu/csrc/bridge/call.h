// Paddle's two ways of calling a kernel.
#pragma once
#include "paddle/phi/core/kernel_context.h"

namespace virtual_npu {

// Called by the static executor for entry `number`. (Dygraph calls the thunk with the same number.)
void call_with_context(int number, phi::KernelContext* context);

}  // namespace virtual_npu
