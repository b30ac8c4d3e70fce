// Copies to, from and within devices, reported to the journal and the profiler.
#pragma once
#include <cstdint>

#include "observe/journal.h"
#include "observe/profiler/recording.h"

namespace virtual_npu {

// Calls `copy`, which copies `bytes` on the calling thread. A copy inside a launch is part of it.
template <typename Copy>
void observe_copy(const char* name, int device, uint64_t bytes, const Copy& copy) {
  if (journal::is_kept() && !journal::Operator::open()) journal::copy(name, bytes);
  if (!profiler::recording() || profiler::KernelSpan::open()) return copy();
  profiler::recorded_copy(name, device, bytes, nullptr, copy)();
}

}  // namespace virtual_npu
