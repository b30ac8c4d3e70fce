// Dry mode: what becomes of a kernel's call. It is given memory for what it would put out, and does not compute.
#pragma once
#include <functional>

#include "virtual_npu/bridge/arguments.h"
#include "virtual_npu/bridge/kernel_entry.h"

namespace virtual_npu {
namespace dry {

// Stands for `compute`, a call of the kernel of `entry`: carries it out where it only makes views or hands on work, and
// where all that it reads is known (known.h); else allocates what the real call would, copies of promoted tensors
// included. Throws phi's Unimplemented where the values decide how large an output is.
void call(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& inputs,
          const TensorPointers& outputs, const std::function<void()>& compute);

}  // namespace dry
}  // namespace virtual_npu
