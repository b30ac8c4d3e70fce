// The plugin reads and rewrites private structures of Paddle, so it serves the very build it was compiled against.
#pragma once
#include <string>

namespace virtual_npu {

// Empty if the running Paddle is the one this plugin was built for, otherwise a sentence that says what was found.
std::string foreign_paddle();

}  // namespace virtual_npu
