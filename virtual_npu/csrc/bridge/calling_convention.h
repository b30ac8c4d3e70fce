// Self-test of the bridge's assumptions about calls between compiled functions.
#pragma once

namespace virtual_npu {

// Calls a function through its thunk and the bridge, as dygraph calls kernels. The call has more integer arguments
// than there are registers, uses every floating-point register, and includes a Place. Throws std::runtime_error with
// the names of the arguments that arrive with a wrong value.
void check_calling_convention();

}  // namespace virtual_npu
