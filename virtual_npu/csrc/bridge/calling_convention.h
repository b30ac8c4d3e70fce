// The self-test of what the bridge assumes about calls between compiled functions.
#pragma once

namespace virtual_npu {

// Calls a function through its thunk and the bridge, as dygraph calls kernels: with more integer arguments than there are
// registers, every floating-point register in use, and a Place. Throws std::runtime_error, which names the arguments, if
// one of them arrives with another value.
void check_calling_convention();

}  // namespace virtual_npu
