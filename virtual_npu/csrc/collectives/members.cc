#include "collectives/members.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "collectives/deadlock.h"
#include "collectives/watchdog.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

constexpr int64_t kMillisecond = 1000000;

// The groups of this process with more than one rank.
struct Groups {
  std::mutex mutex;
  std::vector<Members*> all;
};
Groups& groups() {
  static auto* groups = new Groups;
  return *groups;
}

int own_trainer(int rank) {
  const char* trainer = std::getenv("PADDLE_TRAINER_ID");
  return trainer ? std::atoi(trainer) : rank;
}

// The first trainer with the same host address, which identifies the machine.
int machine_of_trainer(int trainer) {
  const char* all = std::getenv("PADDLE_TRAINER_ENDPOINTS");
  std::istringstream endpoints(all ? all : "");
  std::vector<std::string> addresses;
  for (std::string endpoint; std::getline(endpoints, endpoint, ',');)
    addresses.push_back(endpoint.substr(0, endpoint.rfind(':')));
  if (trainer < 0 || size_t(trainer) >= addresses.size()) return 0;
  return int(std::find(addresses.begin(), addresses.end(), addresses[trainer]) - addresses.begin());
}

}  // namespace

Members::Members(const std::string& name, int ranks, int rank)
    : name_(name), ranks_(ranks), rank_(rank), ranks_here_(ranks) {
  if (config().dry) return;
  segment_.emplace(name, ranks);
  take_slot();
  wait_for_slots();
  count_machines();
  Segment::all_have_joined(name);
  if (ranks == 1) return;
  std::lock_guard<std::mutex> lock(groups().mutex);
  groups().all.push_back(this);
}

void Members::take_slot() {
  Header& header = this->header();
  uint32_t none = 0;
  if (!header.ranks.compare_exchange_strong(none, uint32_t(ranks_)) && none != uint32_t(ranks_))
    throw StreamError("The ranks of the group " + name_ + " disagree on its size: " + std::to_string(none) +
                      " and " + std::to_string(ranks_) + ".");
  RankSlot& slot = own_slot();
  slot.trainer = own_trainer(rank_);
  slot.machine = machine_of_trainer(slot.trainer);
  slot.process = this_process();
  slot.status_file = status_file();
  uint32_t empty = RankSlot::kEmpty;
  if (!slot.state.compare_exchange_strong(empty, RankSlot::kTaken))
    throw StreamError("Two processes are rank " + std::to_string(rank_) + " of the group " + name_ + ".");
  header.taken.fetch_add(1);
  wake(&header.taken);
}

void Members::wait_for_slots() {
  Header& header = this->header();
  // A killed rank may have claimed its slot without being counted.
  Watchdog watchdog(*this, [&](int rank) {
    return header.taken.load() != uint32_t(ranks_) &&
           (slot(rank).state.load() == RankSlot::kEmpty || state_of(slot(rank).process) == ProcessState::kGone);
  });
  for (;;) {
    const uint32_t taken = header.taken.load();
    if (taken == uint32_t(ranks_)) return;
    check();
    wait_on(&header.taken, taken, watchdog.until_next_check());
    watchdog.check_if_due("the creation of the group");
  }
}

void Members::count_machines() {
  std::set<int> all;
  ranks_here_ = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    all.insert(machine_of(rank));
    ranks_here_ += machine_of(rank) == machine_of(rank_);
  }
  machines_ = int(all.size());
}

void Members::leave() {
  if (!segment_) return;
  {
    std::lock_guard<std::mutex> lock(groups().mutex);
    auto& all = groups().all;
    all.erase(std::remove(all.begin(), all.end(), this), all.end());
  }
  own_slot().state.store(RankSlot::kLeft);
}

void Members::barrier() {
  check();
  Header& header = this->header();
  const uint32_t before = header.generation.load() & ~Header::kBroken;
  const uint32_t next = (before + 1) & ~Header::kBroken;
  own_slot().arrived.store(next);
  if (header.here.fetch_add(1) + 1 == uint32_t(ranks_)) {
    header.here.store(0);
    // Compare-and-swap, because another rank may be breaking the group.
    uint32_t generation = header.generation.load();
    while (!header.generation.compare_exchange_weak(generation, next | (generation & Header::kBroken))) {
    }
    wake(&header.generation);
    return check();
  }
  // A killed rank may have arrived without being counted or without waking the others. A rank that exited after the
  // barrier saw it complete, and so does any rank that checks afterwards.
  Watchdog watchdog(*this, [&](int rank) {
    return (slot(rank).arrived.load() != next || state_of(slot(rank).process) == ProcessState::kGone) &&
           (header.generation.load() & ~Header::kBroken) == before;
  });
  for (;;) {
    const uint32_t generation = header.generation.load();
    if ((generation & ~Header::kBroken) != before) break;
    check();
    wait_on(&header.generation, generation, watchdog.until_next_check());
    watchdog.check_if_due(own_slot().last_call());
  }
  check();
}

void Members::wait_for_bell(uint32_t seen, const Call& call, const std::vector<int>& awaited) {
  Word& bell = own_slot().doorbell;
  Watchdog watchdog(*this, [&](int rank) {
    return bell.load() == seen && std::find(awaited.begin(), awaited.end(), rank) != awaited.end();
  });
  while (bell.load() == seen) {
    check();
    wait_on(&bell, seen, watchdog.until_next_check());
    watchdog.check_if_due(call);
  }
  check();
}

void Members::ring(int rank) {
  slot(rank).doorbell.fetch_add(1);
  wake(&slot(rank).doorbell);
}

void Members::check() {
  if (!segment_) return;
  Header& header = this->header();
  if (!(header.generation.load() & Header::kBroken)) return;
  const std::string failure = header.failure;
  if (header.spreads) break_all_groups(failure);
  throw StreamError(failure);
}

void Members::break_with(const std::string& failure, bool spreads) {
  Header& header = this->header();
  uint32_t none = Header::kNone;
  if (header.failure_state.compare_exchange_strong(none, Header::kBeingWritten)) {
    std::strncpy(header.failure, failure.c_str(), sizeof(header.failure) - 1);
    header.spreads = spreads;
    header.failure_state.store(Header::kWritten);
  } else {  // another rank is writing, unless it was killed
    for (int i = 0; i < 100 && header.failure_state.load() != Header::kWritten; ++i)
      wait_on(&header.failure_state, Header::kBeingWritten, kMillisecond);
  }
  header.generation.fetch_or(Header::kBroken);
  wake(&header.generation);
  wake(&header.taken);
  for (int rank = 0; rank < ranks_; ++rank) ring(rank);
}

void Members::fail(const std::string& failure, bool spreads) {
  break_with(failure, spreads);
  check();
  std::abort();  // unreachable: check() throws because the group is broken
}

void Members::give_up() {
  break_with(describe(rank_) + " left the " + describe_group() + " before its last collective completed: " +
                 virtual_npu::describe(own_slot().last_call()) + ".",
             false);
}

void break_all_groups(const std::string& failure) {
  std::lock_guard<std::mutex> lock(groups().mutex);
  for (Members* group : groups().all)
    if (!(group->header().generation.load() & Header::kBroken)) group->break_with(failure, true);
}

std::string lost_rank() {
  std::lock_guard<std::mutex> lock(groups().mutex);
  for (Members* group : groups().all)
    for (int rank = 0; rank < group->ranks_; ++rank)
      if (const ProcessState state = state_of(group->slot(rank).process); state != ProcessState::kRuns)
        return group->describe(rank) + " of the " + group->describe_group() +
               (state == ProcessState::kGone ? " has exited" : " is stopped");
  return "";
}

std::string Members::describe(int rank) {
  const RankSlot& other = slot(rank);
  if (other.state.load() == RankSlot::kEmpty) return "rank " + std::to_string(rank);
  const std::string trainer = other.trainer == rank ? "" : "trainer " + std::to_string(other.trainer) + ", ";
  return "rank " + std::to_string(rank) + " (" + trainer + "process " + std::to_string(other.process.number) + ")";
}

std::string Members::describe_group() const {
  return "group " + name_ + " of " + std::to_string(ranks_) + " ranks";
}

}  // namespace virtual_npu
