#include "collectives/watchdog.h"

#include <algorithm>
#include <cstdio>

#include "collectives/deadlock.h"
#include "collectives/members.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

constexpr int64_t kFirstCheck = 20000000, kCheckInterval = 100000000;

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", value);
  return text;
}

}  // namespace

Watchdog::Watchdog(Members& members, std::function<bool(int)> is_missing)
    : members_(members), is_missing_(std::move(is_missing)), started_(now()), next_check_(started_ + kFirstCheck) {}

Watchdog::~Watchdog() {
  if (published_) withdraw_status();
}

int64_t Watchdog::until_next_check() const { return std::max<int64_t>(next_check_ - now(), 1); }

double Watchdog::waited() const { return double(now() - started_) / 1e9; }

void Watchdog::check_if_due(const Call& waiting) {
  if (now() >= next_check_) check(describe(waiting));
}
void Watchdog::check_if_due(const std::string& waiting) {
  if (now() >= next_check_) check(waiting);
}

// Why the rank cannot arrive, or "". `lost`: it cannot arrive anywhere else either.
std::string Watchdog::reason_against(int rank, bool* lost) {
  RankSlot& slot = members_.slot(rank);
  const double timeout = config().collective_timeout;
  if (slot.state.load() == RankSlot::kEmpty) {
    *lost = true;
    if (state_of(Segment::maker(members_.name())) == ProcessState::kGone) return "whose first rank has exited";
    const std::string other = waited() > timeout ? lost_rank() : "";
    return other.empty() ? "" : "while " + other;
  }
  const ProcessState state = state_of(slot.process);
  *lost = state != ProcessState::kRuns;
  if (state == ProcessState::kGone) return "which has exited";
  if (slot.state.load() == RankSlot::kLeft) return "which has left the group";
  if (state == ProcessState::kRuns) {
    checks_while_stopped_[rank] = 0;
    return "";
  }
  // Counts checks instead of using the clock, which advances while this process itself is stopped, with the whole
  // job.
  return ++checks_while_stopped_[rank] * kCheckInterval >= nanoseconds(timeout / 2) ? "which is stopped" : "";
}

std::string Watchdog::list(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + members_.describe(rank);
  return text;
}

std::string Watchdog::last_call(int rank) {
  RankSlot& slot = members_.slot(rank);
  if (slot.state.load() == RankSlot::kEmpty) return "";
  return " Its last collective in this group was " + describe(slot.last_call()) + ".";
}

void Watchdog::check(const std::string& waiting) {
  next_check_ = now() + kCheckInterval;
  const std::string who = members_.describe(members_.rank()) + " of the " + members_.describe_group() + " waits in " +
                          waiting + " for ";
  std::vector<int> missing;
  for (int rank = 0; rank < members_.ranks(); ++rank) {
    if (rank == members_.rank() || !is_missing_(rank)) continue;
    missing.push_back(rank);
    bool lost = false;
    const std::string reason = reason_against(rank, &lost);
    // The rank may have arrived after the previous check and exited since.
    if (reason.empty() || !is_missing_(rank)) continue;
    members_.fail(who + members_.describe(rank) + ", " + reason + "." + last_call(rank), lost);
  }
  if (!missing.empty() && waited() > config().collective_timeout / 2) look_for_deadlock(missing, who);
  if (waited() > config().collective_limit)
    members_.fail(who + (missing.empty() ? "ranks that have arrived" : list(missing)) + ", and has waited for " +
                      seconds(waited()) + ". VIRTUAL_NPU_COLLECTIVE_LIMIT sets the limit.",
                  true);
  if (missing.empty() || noted_ || waited() < config().collective_timeout) return;
  noted_ = true;
  std::fprintf(stderr, "virtual npu: %s%s: %s so far. All of them may still arrive, so it keeps waiting.\n",
               who.c_str(), list(missing).c_str(), seconds(waited()).c_str());
}

void Watchdog::look_for_deadlock(const std::vector<int>& missing, const std::string& who) {
  std::vector<Awaited> awaited;
  for (int rank : missing) {
    const RankSlot& slot = members_.slot(rank);
    if (slot.state.load() != RankSlot::kEmpty) awaited.push_back({slot.process, slot.status_file});
  }
  const bool program_waits = publish_status(who + list(missing), started_, awaited);
  if (published_ && !program_waits) withdraw_status();
  published_ = program_waits;
  // The statuses of other processes are read one at a time while they run, so a cycle is real only if it persists.
  const std::string cycle = find_cycle(awaited);
  const bool same = !cycle.empty() && cycle == suspected_cycle_;
  suspected_cycle_ = cycle;
  if (!same || waited() < config().collective_timeout * 0.8) return;
  members_.fail("Ranks wait for each other in a deadlock: " + who + list(missing) + cycle + ".", true);
}

}  // namespace virtual_npu
