// Resharding of npu tensors in dygraph.
//
// Paddle's CPU wheel compiles its reshard functions for the CPU only; they throw with any other context. This
// replaces each of them with a function that moves npu tensors through the xccl communicators of the mesh's axes.
#pragma once

namespace virtual_npu {

// Called once, while the plugin is loaded.
void install_reshard();

}  // namespace virtual_npu
