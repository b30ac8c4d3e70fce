// The emulated link between devices: full duplex, VIRTUAL_NPU_LINK_GBPS in each direction, shared by all groups of the
// process, and VIRTUAL_NPU_LINK_US of latency. A transfer takes wall-clock time, but no time of the processor.
#pragma once
#include <cstddef>
#include <cstdint>

namespace virtual_npu {

// Occupies the link for a transfer that can begin at `start`, in nanoseconds of now(), with so many bytes in each
// direction; when it is over:  begin + latency + bytes / bandwidth,  begin: as soon as the link is free after `start`.
int64_t occupy_link(int64_t start, size_t bytes_out, size_t bytes_in);

void sleep_until(int64_t time);

}  // namespace virtual_npu
