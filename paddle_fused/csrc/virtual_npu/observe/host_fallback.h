// The host fallback observer: is called with every kernel that a card would not run on its cores, and the tensor that is
// the cause.
#pragma once
#include "virtual_npu/bridge/arguments.h"
#include "virtual_npu/bridge/kernel_entry.h"

namespace virtual_npu {

// Whether there is an observer.
bool host_fallbacks_are_observed();

// `inputs` and `outputs` are those of a call of the kernel. Throws phi's Unimplemented when the observer refuses it.
void report_host_fallback(const KernelEntry& entry, const TensorPointers& inputs, const TensorPointers& outputs);

}  // namespace virtual_npu
