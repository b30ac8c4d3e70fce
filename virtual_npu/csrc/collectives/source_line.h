// Where in the program a collective was called.
#pragma once
#include <string>

namespace virtual_npu {

// "file.py:12": the innermost Python frame of the calling thread that is not Paddle's own. "a static program" on a
// thread that runs no Python, such as those of the static graph's executor.
std::string source_line();

}  // namespace virtual_npu
