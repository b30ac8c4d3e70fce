// Other processes on this host and whether they are alive.
#pragma once
#include <cstdint>

namespace virtual_npu {

// A pid alone does not identify a process, because it is reused. In shared memory.
struct ProcessId {
  int32_t number = 0;
  uint64_t started = 0;  // in ticks since the host booted

  bool operator==(const ProcessId& other) const { return number == other.number && started == other.started; }
};

// Throws std::runtime_error if it cannot be read.
ProcessId this_process();

enum class ProcessState { kRuns, kStopped, kGone };
// Also kRuns if the state currently cannot be read.
ProcessState state_of(const ProcessId& process);

}  // namespace virtual_npu
