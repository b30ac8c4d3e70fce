// The ranks of a group, from the view of one rank: barriers, waits, and failures of ranks to arrive.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/link.h"
#include "collectives/segment.h"
#include "runtime/stream.h"

namespace virtual_npu {

class Members {
 public:
  // Claims the rank's slot and waits until all slots are claimed.
  Members(const std::string& name, int ranks, int rank);
  ~Members() { leave(); }
  // Leaves the group. Ranks that wait for this rank afterwards fail immediately.
  void leave();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  Segment& segment() { return *segment_; }
  RankSlot& slot(int rank) { return header().slots[rank]; }
  RankSlot& own_slot() { return slot(rank_); }
  Channel& channel(int from, int to) { return header().channels[from][to]; }

  // Waits for all ranks. Each rank must call it equally often. Throws StreamError if the group is or becomes broken.
  void barrier();

  // Waits until this rank's doorbell, last read as `seen`, is rung. `call` waits for the ranks in `awaited`.
  void wait_for_bell(uint32_t seen, const Call& call, const std::vector<int>& awaited);
  void ring(int rank);

  // Throws StreamError with the group's failure if it is broken.
  void check();
  // Breaks the group for all ranks, and with `spreads` the other groups of its ranks. Throws StreamError.
  [[noreturn]] void fail(const std::string& failure, bool spreads);

  // Breaks the group because this rank leaves it before its last call has completed.
  void give_up();

  // The link between this rank and another one.
  LinkKind link_to(int rank) { return machine_of(rank) == machine_of(rank_) ? LinkKind::kHccs : LinkKind::kRdma; }
  // The number of machines of the group, and the number of its ranks on this machine.
  int machines() const { return machines_; }
  int ranks_here() const { return ranks_here_; }

  // "rank 1 (trainer 3, process 4711)"
  std::string describe(int rank);
  std::string describe_group() const;

 private:
  Header& header() { return segment_->header(); }
  int machine_of(int rank) { return segment_ ? slot(rank).machine : 0; }
  void count_machines();
  void take_slot();
  void wait_for_slots();
  void break_with(const std::string& failure, bool spreads);
  friend void break_all_groups(const std::string& failure);
  friend std::string lost_rank();

  const std::string name_;
  const int ranks_, rank_;
  int machines_ = 1, ranks_here_;
  std::optional<Segment> segment_;  // none in dry mode, which has no other processes
};

// Breaks every group of this process, because a rank of the job is lost.
void break_all_groups(const std::string& failure);
// Describes a rank of any of this process's groups whose process has exited or is stopped; "" if there is none.
std::string lost_rank();

}  // namespace virtual_npu
