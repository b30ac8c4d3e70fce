// The emulated full-duplex links of a device, shared by all groups of the process: one to the devices of its machine
// (VIRTUAL_NPU_LINK_GBPS per direction, latency VIRTUAL_NPU_LINK_US) and a network port to other machines
// (VIRTUAL_NPU_RDMA_GBPS, VIRTUAL_NPU_RDMA_US). A transfer takes wall-clock time, but no CPU time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace virtual_npu {

enum class LinkKind { kHccs, kRdma };  // inside a machine, between machines

// Bytes in each direction.
struct Traffic {
  size_t out = 0, in = 0;
};

// Occupies a link for a transfer that can begin at `start`, in nanoseconds of now(). Returns the end of the transfer:
// begin + latency + bytes / bandwidth, where begin is the first time after `start` at which the link is free.
int64_t occupy_link(LinkKind kind, int64_t start, Traffic bytes);

void sleep_until(int64_t time);

}  // namespace virtual_npu
