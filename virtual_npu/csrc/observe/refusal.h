// A call that CANN refuses, as paddle-custom-npu passes it on: the plugin ignores aclnn's return codes, so nothing is
// raised, the outputs stay as they are allocated, and only the calling thread's recent error message tells.
#pragma once
#include <string>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

// Whether this call of the kernel or operator `name` is to be refused: it is the call that VIRTUAL_NPU_REFUSE or
// virtual_npu_refuse chose. Then the calling thread's error message is set.
bool refuses_call(const std::string& name, phi::DataType dtype);

}  // namespace virtual_npu
