// Modules of the package virtual_npu that the plugin starts.
#pragma once

namespace virtual_npu {

// Imports virtual_npu.`name` and calls its function start(), in a process that runs Python. `consequence` of a failure,
// such as "no warnings about float64", is printed.
void start_python_module(const char* name, const char* consequence);

}  // namespace virtual_npu
