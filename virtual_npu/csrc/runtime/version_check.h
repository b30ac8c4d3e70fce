// The plugin accesses private data structures of Paddle, so it works only with the Paddle build it was compiled for.
#pragma once
#include <string>

namespace virtual_npu {

// Empty if the running Paddle is the one this plugin was built for, otherwise an error message.
std::string foreign_paddle();

}  // namespace virtual_npu
