// Dry mode: a kernel's call allocates its outputs and does not compute.
#pragma once
#include <functional>

#include "bridge/arguments.h"
#include "bridge/kernel_entry.h"

namespace virtual_npu {
namespace dry {

// Takes the place of `compute`, a call of the kernel of `entry`: runs it where it only makes views or enqueues work, and
// where all that it reads is known (known_values.h); otherwise allocates what the real call would, copies of promoted
// tensors included. Throws phi's Unimplemented where the size of an output depends on values.
void call(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& inputs,
          const TensorPointers& outputs, const std::function<void()>& compute);

}  // namespace dry
}  // namespace virtual_npu
