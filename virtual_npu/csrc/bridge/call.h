// The two ways in which Paddle calls a kernel.
#pragma once
#include "paddle/phi/core/kernel_context.h"

namespace virtual_npu {

// What the static executor calls for entry `number`. (Dygraph goes through the thunk of the same number.)
void call_with_context(int number, phi::KernelContext* context);

}  // namespace virtual_npu
