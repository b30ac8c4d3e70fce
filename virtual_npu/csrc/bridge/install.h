// Fills Paddle's kernel table for the backend "npu".
#pragma once
#include <string>

namespace virtual_npu {

// Once, while the plugin is loaded. For every CPU kernel without an npu counterpart it registers one that runs the CPU
// kernel on CPU tensors that share the memory of the npu tensors; where the CPU has a float32 kernel but none for
// bfloat16 or float16, that one serves them too, by casting. Kernels written for npu are wrapped so that their calls are
// recorded.
void install_bridge();

// The name of the bridged CPU kernel where a kernel written for npu takes precedence: that one may delegate to it.
inline std::string bridged_name(const std::string& kernel) { return "virtual_npu_bridged_" + kernel; }

}  // namespace virtual_npu
