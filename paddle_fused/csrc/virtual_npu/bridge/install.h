// Fills Paddle's kernel table for the backend "npu".
#pragma once

namespace virtual_npu {

// Once, while the plugin is loaded. For every CPU kernel without an npu counterpart it registers one that runs the CPU
// kernel on shadows of the npu tensors; where the CPU has a float32 kernel but none for bfloat16 or float16, that one
// serves them too, by casting. Kernels written for npu are wrapped so that their calls are recorded.
void install_bridge();

}  // namespace virtual_npu
