// What a waiting rank does about ranks that do not come.
//
// A rank may be slow: it compiles, loads data, computes. So it is waited for, unless it cannot come: its process has
// ended, it has left the group, it has been stopped for half of VIRTUAL_NPU_COLLECTIVE_TIMEOUT, or it waits itself, for
// longer than that, for something that waits for us. A rank that is waited for longer than the timeout is named on
// stderr; longer than VIRTUAL_NPU_COLLECTIVE_LIMIT, and it is given up.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "virtual_npu/collectives/call.h"
#include "virtual_npu/collectives/segment.h"

namespace virtual_npu {

class Members;

// For one wait. Looking costs a few microseconds for every missing rank, and is done ten times a second.
class Watchdog {
 public:
  Watchdog(Members& members, std::function<bool(int rank)> is_missing);
  ~Watchdog();

  int64_t until_next_look() const;  // nanoseconds
  // Breaks the group (Members::fail) if a rank that `waiting` needs cannot come.
  void look_if_due(const Call& waiting);
  void look_if_due(const std::string& waiting);

 private:
  void look(const std::string& waiting);
  std::string reason_against(int rank, bool* lost);
  void look_for_deadlock(const std::vector<int>& missing, const std::string& who);
  std::string last_call(int rank);
  double waited() const;
  std::string list(const std::vector<int>& ranks);

  Members& members_;
  const std::function<bool(int)> is_missing_;
  const int64_t started_;
  int64_t next_look_;
  std::array<int, kMaxRanks> looks_at_stopped_{};
  std::string suspicion_;  // the circle found at the last look
  bool noted_ = false, published_ = false;
};

}  // namespace virtual_npu
