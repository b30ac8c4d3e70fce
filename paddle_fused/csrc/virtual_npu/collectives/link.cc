#include "virtual_npu/collectives/link.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "virtual_npu/collectives/futex.h"
#include "virtual_npu/runtime/config.h"

namespace virtual_npu {
namespace {

// One direction.
struct Lane {
  int64_t free_at = 0;

  int64_t occupy(int64_t start, size_t bytes) {
    if (bytes == 0 || config().link_gbps == 0) return start;
    free_at = std::max(start, free_at) + int64_t(double(bytes) / config().link_gbps);
    return free_at;
  }
};

struct Lanes {
  std::mutex mutex;
  Lane out, in;
};
Lanes& lanes() {
  static auto* lanes = new Lanes;
  return *lanes;
}

}  // namespace

int64_t occupy_link(int64_t start, size_t bytes_out, size_t bytes_in) {
  Lanes& link = lanes();
  std::lock_guard<std::mutex> lock(link.mutex);
  const int64_t over = std::max(link.out.occupy(start, bytes_out), link.in.occupy(start, bytes_in));
  return over + int64_t(config().link_us * 1e3);
}

void sleep_until(int64_t time) {
  if (time <= now()) return;
  const timespec end{time / 1000000000, time % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {
  }
}

}  // namespace virtual_npu
