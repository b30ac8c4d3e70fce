// The watchdog of a waiting rank handles ranks that do not arrive.
//
// A rank may be slow: it compiles, loads data, computes. The others wait for it unless it cannot arrive: its process
// has exited, it has left the group, it has been stopped for half of VIRTUAL_NPU_COLLECTIVE_TIMEOUT, or it has been
// deadlocked with this rank for longer than the timeout. After the timeout, the watchdog reports the missing ranks on
// stderr; after VIRTUAL_NPU_COLLECTIVE_LIMIT, it breaks the group. The launcher supervises the processes themselves
// (llm_npu/launch/supervisor.py).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/call.h"
#include "collectives/segment.h"

namespace virtual_npu {

class Members;

// For one wait. A check takes a few microseconds per missing rank and runs ten times a second.
class Watchdog {
 public:
  Watchdog(Members& members, std::function<bool(int rank)> is_missing);
  ~Watchdog();

  int64_t until_next_check() const;  // nanoseconds
  // Breaks the group (Members::fail) if a rank that `waiting` needs cannot arrive.
  void check_if_due(const Call& waiting);
  void check_if_due(const std::string& waiting);

 private:
  void check(const std::string& waiting);
  std::string reason_against(int rank, bool* lost);
  void look_for_deadlock(const std::vector<int>& missing, const std::string& who);
  std::string last_call(int rank);
  double waited() const;
  std::string list(const std::vector<int>& ranks);

  Members& members_;
  const std::function<bool(int)> is_missing_;
  const int64_t started_;
  int64_t next_check_;
  std::array<int, kMaxRanks> checks_while_stopped_{};
  std::string suspected_cycle_;  // found at the last check
  bool noted_ = false, published_ = false;
};

}  // namespace virtual_npu
