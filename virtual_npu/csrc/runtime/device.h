// The device selected by the calling thread.
#pragma once

namespace virtual_npu {

int current_device();
void choose_device(int device);

}  // namespace virtual_npu
