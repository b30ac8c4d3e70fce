// Paddle's interface for collectives (xccl).
#pragma once
#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

void fill_collective_interface(C_DeviceInterface* interface);

}  // namespace virtual_npu
