// Fills Paddle's kernel table for the backend "npu".
#pragma once
#include <string>

namespace virtual_npu {

// Called once, while the plugin is loaded. For every CPU kernel without an npu counterpart, registers a kernel that
// runs the CPU kernel on CPU tensors sharing the memory of the npu tensors. If the CPU has a float32 kernel but no
// bfloat16 or float16 kernel, the float32 kernel is also registered for these types, with casts. Kernels written for
// npu are wrapped to record their calls.
void install_bridge();

// The name of the bridged CPU kernel that an npu kernel overrides. The npu kernel may delegate to it.
inline std::string bridged_name(const std::string& kernel) { return "virtual_npu_bridged_" + kernel; }

}  // namespace virtual_npu
