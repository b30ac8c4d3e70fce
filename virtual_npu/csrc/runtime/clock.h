// Nanoseconds of the clock shared by all processes on this host.
#pragma once
#include <time.h>

#include <cstdint>

namespace virtual_npu {

inline int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

inline int64_t nanoseconds(double seconds) { return int64_t(seconds * 1e9); }

}  // namespace virtual_npu
