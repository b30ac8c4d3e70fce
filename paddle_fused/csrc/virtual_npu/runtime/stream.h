// Streams and events.
//
// Work is done on the calling thread at the moment it is submitted, so a stream has always finished what it was
// given: there is nothing to wait for, and an event is reached as soon as it is recorded.
#pragma once
#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

void fill_stream_interface(C_DeviceInterface* interface);

}  // namespace virtual_npu
