// Dry mode: a kernel call allocates its outputs and does not compute.
#pragma once
#include <functional>

#include "bridge/arguments.h"
#include "bridge/kernel_entry.h"

namespace virtual_npu {
namespace dry {

// Replaces `compute`, a call of the kernel of `entry`. It runs the kernel if the kernel only creates views or
// enqueues work, or if all of its inputs are known (known_values.h). Otherwise it makes the same allocations as the
// real call, including copies of promoted tensors. Throws phi's Unimplemented if the size of an output depends on
// values.
void call(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& inputs,
          const TensorPointers& outputs, const std::function<void()>& compute);

}  // namespace dry
}  // namespace virtual_npu
