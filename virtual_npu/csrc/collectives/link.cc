#include "collectives/link.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "collectives/futex.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

// One direction.
struct Lane {
  int64_t free_at = 0;

  int64_t occupy(int64_t start, size_t bytes, double gbps) {
    if (bytes == 0 || gbps == 0) return start;
    free_at = std::max(start, free_at) + int64_t(double(bytes) / gbps);
    return free_at;
  }
};

struct Link {
  const double gbps, microseconds;
  std::mutex mutex;
  Lane out, in;
};
Link& link_of(LinkKind kind) {
  static auto* hccs = new Link{config().link_gbps, config().link_us};
  static auto* rdma = new Link{config().rdma_gbps, config().rdma_us};
  return kind == LinkKind::kHccs ? *hccs : *rdma;
}

}  // namespace

int64_t occupy_link(LinkKind kind, int64_t start, Traffic bytes) {
  Link& link = link_of(kind);
  std::lock_guard<std::mutex> lock(link.mutex);
  const int64_t over =
      std::max(link.out.occupy(start, bytes.out, link.gbps), link.in.occupy(start, bytes.in, link.gbps));
  return over + int64_t(link.microseconds * 1e3);
}

void sleep_until(int64_t time) {
  if (time <= now()) return;
  const timespec end{time / 1000000000, time % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {
  }
}

}  // namespace virtual_npu
