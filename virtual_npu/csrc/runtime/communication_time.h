// How long this process communicates, and how much of that time is exposed: not hidden behind computation.
#pragma once
#include <atomic>
#include <cstdint>

#include "runtime/clock.h"

namespace virtual_npu {

// Nanoseconds since the start, over all groups of processes.
struct CommunicationTime {
  std::atomic<int64_t> busy{0};     // in collectives and transfers, the wait for other ranks included
  std::atomic<int64_t> exposed{0};  // in which the program waited for them, or carried them out itself
};
CommunicationTime& communication_time();

// Adds the time from `begin` to its own end to a sum.
class Timed {
 public:
  explicit Timed(std::atomic<int64_t>& sum, int64_t begin = now()) : sum_(sum), begin_(begin) {}
  ~Timed() { sum_.fetch_add(now() - begin_, std::memory_order_relaxed); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<int64_t>& sum_;
  const int64_t begin_;
};

}  // namespace virtual_npu
