// The device profiler for Paddle: paddle.profiler.Profiler with ProfilerTarget.CUSTOM_DEVICE.
#pragma once
#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

void fill_profiler_interface(C_DeviceInterface* interface);

}  // namespace virtual_npu
