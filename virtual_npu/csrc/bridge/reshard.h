// Resharding of npu tensors in dygraph.
//
// Paddle's wheel for the CPU compiles its reshard functions for the CPU alone; with another context they throw. Here each
// of them gets a counterpart that moves npu tensors through the xccl communicators of the mesh's axes.
#pragma once

namespace virtual_npu {

// Once, while the plugin is loaded.
void install_reshard();

}  // namespace virtual_npu
