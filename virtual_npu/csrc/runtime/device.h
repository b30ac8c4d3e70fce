// The device that the calling thread has chosen.
#pragma once

namespace virtual_npu {

int current_device();

}  // namespace virtual_npu
