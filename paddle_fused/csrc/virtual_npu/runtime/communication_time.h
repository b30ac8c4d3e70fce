// How long this process communicates, and how much of that holds the program up.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace virtual_npu {

// Nanoseconds since the start, over all groups of processes.
struct CommunicationTime {
  std::atomic<int64_t> busy{0};     // in collectives and transfers, the wait for other ranks included
  std::atomic<int64_t> exposed{0};  // in which the program waited for them, or carried them out itself
};
CommunicationTime& communication_time();

// Adds its own lifetime to a sum.
class Timed {
 public:
  explicit Timed(std::atomic<int64_t>& sum) : sum_(sum) {}
  ~Timed() {
    const auto passed = std::chrono::steady_clock::now() - begin_;
    sum_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count(), std::memory_order_relaxed);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<int64_t>& sum_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace virtual_npu
