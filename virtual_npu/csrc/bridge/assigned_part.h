// The part of a tensor that x[a:b] = value writes.
#pragma once
#include <optional>

#include "bridge/arguments.h"
#include "bridge/kernel_entry.h"
#include "checks/launch.h"

namespace virtual_npu {

// The part that set_value and set_value_with_tensor write, from its first to its last element. Nothing for other kernels
// and in a static program, where the whole output counts as written.
std::optional<checks::Part> assigned_part(const KernelEntry& entry, const TypedArguments& arguments);
inline std::optional<checks::Part> assigned_part(const KernelEntry&, const ContextArguments&) { return std::nullopt; }

}  // namespace virtual_npu
