// The program line that called a collective.
#pragma once
#include <string>

namespace virtual_npu {

// "file.py:12": the innermost Python frame of the calling thread outside Paddle. "a static program" on a thread without
// Python, such as the threads of the static graph's executor.
std::string source_line();

// The same, or an empty string if the calling thread does not hold the interpreter lock. Never waits for it, so it may
// be called under other locks.
std::string source_line_without_waiting();

}  // namespace virtual_npu
