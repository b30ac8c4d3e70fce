// This process's communication time, and how much of it is exposed (not overlapped with computation).
#pragma once
#include <atomic>
#include <cstdint>

#include "runtime/clock.h"

namespace virtual_npu {

// Nanoseconds since the start, over all process groups.
struct CommunicationTime {
  std::atomic<int64_t> busy{0};     // in collectives and transfers, including waits for other ranks
  std::atomic<int64_t> exposed{0};  // in which the program waited for them or executed them
};
CommunicationTime& communication_time();

// Adds the time from `begin` to its destruction to a sum.
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
