// Tells an observer of the kernels that a card would not run on its cores, with the tensor to blame.
#pragma once
#include "virtual_npu/bridge/arguments.h"
#include "virtual_npu/bridge/kernel_entry.h"

namespace virtual_npu {

// Whether anybody wants to know.
bool departures_are_observed();

// `inputs` and `outputs` are those of a call of the kernel. Throws phi's Unimplemented when the observer refuses it.
void tell_departure(const KernelEntry& entry, const TensorPointers& inputs, const TensorPointers& outputs);

}  // namespace virtual_npu
