// Other processes of this host: whether they are still there.
#pragma once
#include <cstdint>

namespace virtual_npu {

// A number alone does not name a process: it is given again after its end. Lies in shared memory.
struct ProcessId {
  int32_t number = 0;
  uint64_t started = 0;  // in ticks since the host's start

  bool operator==(const ProcessId& other) const { return number == other.number && started == other.started; }
};

// std::runtime_error if it cannot be read.
ProcessId this_process();

enum class ProcessState { kRuns, kStopped, kGone };
// kRuns, too, if nothing can be found out about it now.
ProcessState state_of(const ProcessId& process);

}  // namespace virtual_npu
