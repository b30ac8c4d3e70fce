// Emulates a call that CANN rejects. paddle-custom-npu ignores aclnn's return codes, so no error is raised and the
// outputs stay uninitialized. Only the calling thread's recent error message reports the failure.
#pragma once
#include <string>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

// Whether this call of the kernel or operator `name` is the one chosen by VIRTUAL_NPU_REFUSE or virtual_npu_refuse.
// If so, sets the calling thread's error message.
bool refuses_call(const std::string& name, phi::DataType dtype);

}  // namespace virtual_npu
