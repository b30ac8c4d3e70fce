// The program line that called a collective.
#pragma once
#include <string>

namespace virtual_npu {

// "file.py:12": the innermost Python frame of the calling thread outside Paddle. "a static program" on a thread without
// Python, such as the threads of the static graph's executor.
std::string source_line();

}  // namespace virtual_npu
