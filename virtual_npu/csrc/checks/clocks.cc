#include "checks/clocks.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace virtual_npu {
namespace checks {
namespace {

using Clock = std::vector<uint32_t>;  // by actor; missing entries are 0

uint32_t time_of(const Clock& clock, Actor actor) { return size_t(actor) < clock.size() ? clock[actor] : 0; }

void join(Clock* clock, const Clock& other) {
  if (clock->size() < other.size()) clock->resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) (*clock)[i] = std::max((*clock)[i], other[i]);
}

struct State {
  std::mutex mutex;
  std::vector<Clock> clocks{Clock{1}};  // by actor
  Clock seen;                           // ends that the host has seen, including by queries that order nothing
  std::vector<Actor> compute;
  std::unordered_map<const void*, Actor> streams;
  std::unordered_map<const void*, Clock> events;
  const void* queried = nullptr;  // an event that was found complete by the last call

  Clock& host() { return clocks[kHost]; }
  Actor actor(const void* stream) {
    const auto [entry, is_new] = streams.emplace(stream, Actor(clocks.size()));
    if (is_new) clocks.emplace_back();
    return entry->second;
  }
  void settle_query() {
    if (queried) join(&host(), events[queried]);
    queried = nullptr;
  }
};

State& state() {
  static auto* state = new State;  // streams outlive static objects
  return *state;
}

}  // namespace

Actor actor_of(const void* stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().actor(stream);
}

Epoch launch(Actor actor) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  Clock& clock = all.clocks[actor];
  if (actor != kHost) join(&clock, all.host());
  if (clock.size() <= size_t(actor)) clock.resize(actor + 1);
  return {actor, ++clock[actor]};
}

bool is_ordered(Epoch earlier, Actor actor) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  return time_of(all.clocks[actor], earlier.actor) >= earlier.time ||
         time_of(all.host(), earlier.actor) >= earlier.time;
}

void computes(Actor actor) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!std::count(all.compute.begin(), all.compute.end(), actor)) all.compute.push_back(actor);
}

bool is_compute(Actor actor) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  return std::count(all.compute.begin(), all.compute.end(), actor) > 0;
}

bool is_over(Epoch earlier, Actor owner) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto includes = [&](const Clock& clock) { return time_of(clock, earlier.actor) >= earlier.time; };
  if (includes(all.host()) || includes(all.seen)) return true;
  if (owner != kHost) return includes(all.clocks[owner]);
  return std::any_of(all.compute.begin(), all.compute.end(), [&](Actor actor) { return includes(all.clocks[actor]); });
}

void stream_is_gone(const void* stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().streams.erase(stream);
}

void event_is_recorded(const void* event, const void* stream) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  Clock clock = all.clocks[all.actor(stream)];
  join(&clock, all.host());
  all.events[event] = std::move(clock);
}

void stream_waits(const void* stream, const void* event) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  const Actor actor = all.actor(stream);
  const auto entry = all.events.find(event);
  if (entry != all.events.end()) join(&all.clocks[actor], entry->second);
}

void host_waits_for_event(const void* event) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  const auto entry = all.events.find(event);
  if (entry != all.events.end()) join(&all.host(), entry->second);
}

void host_waits_for_stream(const void* stream) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  const Clock clock = all.clocks[all.actor(stream)];
  join(&all.host(), clock);
}

void host_waits_for_all_streams() {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  for (size_t actor = 1; actor < all.clocks.size(); ++actor) join(&all.host(), all.clocks[actor]);
}

void event_is_found_complete(const void* event) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.settle_query();
  const auto entry = all.events.find(event);
  if (entry == all.events.end()) return;
  join(&all.seen, entry->second);
  all.queried = event;
}

void event_is_gone(const void* event) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.queried == event) all.queried = nullptr;
  all.settle_query();
  all.events.erase(event);
}

}  // namespace checks
}  // namespace virtual_npu
