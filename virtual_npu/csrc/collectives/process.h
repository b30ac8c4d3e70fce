// Other processes of this host: whether they are still there.
#pragma once
#include <cstdint>

namespace virtual_npu {

// A pid alone does not identify a process: it is reused. Lies in shared memory.
struct ProcessId {
  int32_t number = 0;
  uint64_t started = 0;  // in ticks since the host's start

  bool operator==(const ProcessId& other) const { return number == other.number && started == other.started; }
};

// std::runtime_error if it cannot be read.
ProcessId this_process();

enum class ProcessState { kRuns, kStopped, kGone };
// kRuns also if its state cannot be read now.
ProcessState state_of(const ProcessId& process);

}  // namespace virtual_npu
