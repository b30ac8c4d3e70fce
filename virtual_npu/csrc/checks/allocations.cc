#include "checks/allocations.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "checks/finding.h"
#include "checks/poison.h"
#include "observe/source_line.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace checks {
namespace {

constexpr size_t kQuarantine = size_t{256} << 20;  // bytes of freed memory that are not reused yet

struct Access {
  const char *begin, *end;
  Epoch epoch;
  bool writes;
  Work work;
};

struct Allocation {
  size_t bytes = 0;
  size_t used = 0;  // by tensors so far
  bool may_be_unwritten = true;
  Work origin;
  Actor owner = kHost;  // the first compute stream that used the memory: its later work may reuse the memory
  std::vector<Access> accesses;  // that later accesses can conflict with
};

struct Freed {
  size_t bytes = 0;
  std::string by;  // the program line
};

// Memory that was released while work on another stream used it.
struct EarlyRelease {
  Epoch work;
  Actor owner;
  std::string text;
};

struct Memory {
  std::mutex mutex;
  std::vector<EarlyRelease> early_releases;
  std::map<const char*, Allocation> allocations;
  std::map<const char*, Freed> freed;
  std::deque<const char*> quarantine;  // in the order of release
  size_t quarantined = 0;
};

Memory& memory() {
  static auto* memory = new Memory;  // memory is released after static objects are gone
  return *memory;
}

// The bytes written behind the tensors of an allocation, up to the end of its red zone. Remainders that are larger
// than Paddle's rounding may belong to other tensors.
size_t written_behind(const char* address, const Allocation& allocation) {
  const size_t from = allocation.bytes - allocation.used < kRounding ? allocation.used : allocation.bytes;
  return overwritten(address + from, allocation.bytes + kRedZone - from, from);
}

// The block of `map` that contains the address, or its end.
template <typename Map>
auto find(Map& map, const void* address) {
  const auto* at = static_cast<const char*>(address);
  const auto next = map.upper_bound(at);
  if (next == map.begin()) return map.end();
  const auto block = std::prev(next);
  return at < block->first + block->second.bytes ? block : map.end();
}

// The allocation that contains the address, or nullptr. The caller holds the mutex.
Allocation* allocation_of(const void* address) {
  const auto block = find(memory().allocations, address);
  return block == memory().allocations.end() ? nullptr : &block->second;
}

constexpr char kBehindTheEnd[] =
    "Compare the sizes of custom operators and of copies to raw addresses with the tensor's.";

const char* stream_of(Epoch epoch) {
  if (epoch.actor == kHost) return " (host) ";
  return is_compute(epoch.actor) ? " (compute stream) " : " (communication stream) ";
}

// What the program lacks between an earlier access and a later one.
const char* missing_wait(Epoch earlier, Epoch later) {
  if (later.actor == kHost) return "Synchronize the stream before the host accesses the memory";
  if (earlier.actor == kHost) return "Launch the work after the host's access";
  if (is_compute(later.actor) && !is_compute(earlier.actor)) return "Call wait() on the earlier call's task first";
  return "Let the later work's stream wait for an event that is recorded after the earlier work";
}

std::string conflict_text(const Access& earlier, const Range& range, Epoch epoch, const Work& work) {
  return *work + stream_of(epoch) + (range.writes ? "writes " : "reads ") + range.tensor + ", which the earlier " +
         *earlier.work + stream_of(earlier.epoch) + (earlier.writes ? "writes" : "reads") +
         ". Nothing orders the two. " + missing_wait(earlier.epoch, epoch) + ".";
}

}  // namespace

void track(void* address, size_t bytes) {
  if (is_checked(kCheckInit) || is_checked(kCheckMemory)) poison(address, bytes + kRedZone);
  Memory& all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.allocations[static_cast<char*>(address)].bytes = bytes;
}

std::vector<Block> untrack(void* address, size_t bytes) {
  const auto* at = static_cast<char*>(address);
  Memory& all = memory();
  std::string origin = "unknown work";
  size_t written = 0;
  std::vector<Block> reusable;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto entry = all.allocations.find(at);
    if (entry == all.allocations.end()) return {{address, bytes}};
    const std::string line = is_checked(kCheckMemory) ? source_line_without_waiting() : "";
    for (const Access& access : entry->second.accesses)
      if (is_checked(kCheckMemory) && access.epoch.actor != kHost && !is_over(access.epoch, entry->second.owner))
        all.early_releases.push_back({access.epoch, entry->second.owner,
                                      (line.empty() ? "" : " at " + line) + " while " + *access.work});
    if (is_checked(kCheckMemory) && entry->second.used > 0) written = written_behind(at, entry->second);
    if (written > 0 && entry->second.origin) origin = *entry->second.origin;
    all.allocations.erase(entry);
    if (!is_checked(kCheckMemory)) return {{address, bytes}};
    all.freed[at] = {bytes, line};
    all.quarantine.push_back(at);
    all.quarantined += bytes;
    while (all.quarantined > kQuarantine) {
      const char* oldest = all.quarantine.front();
      const size_t size = all.freed[oldest].bytes;
      reusable.push_back({const_cast<char*>(oldest), size});
      all.quarantined -= size;
      all.freed.erase(oldest);
      all.quarantine.pop_front();
    }
  }
  if (written > 0)
    raise_at_next_launch("memory", "something wrote " + std::to_string(written) + " bytes behind the end of a tensor that " +
                                       origin + " allocated, before it was freed. " + kBehindTheEnd);
  return reusable;
}

void check_reuse(Actor stream, const Work& work) {
  std::string text;
  {
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto& releases = all.early_releases;
    const auto is_harmless = [](const EarlyRelease& release) { return is_over(release.work, release.owner); };
    releases.erase(std::remove_if(releases.begin(), releases.end(), is_harmless), releases.end());
    for (const EarlyRelease& release : releases)
      if (release.owner == stream || release.owner == kHost) text = release.text;
    if (text.empty()) return;
    releases.clear();
  }
  raise_finding("memory", *work + " may reuse memory that is freed" + text +
                              " still uses it on its stream. Keep the tensor until the work is done: wait for its task "
                              "or for an event of its stream first.");
}

void check_bounds(const Range& range, const Work& work) {
  if (range.bytes == 0) return;
  if (reinterpret_cast<uintptr_t>(range.address) % range.alignment)
    raise_finding("memory", *work + " uses " + range.tensor + ", whose address is not a multiple of " +
                                std::to_string(range.alignment) +
                                " bytes, the size of an element. Let its offset be a multiple of this size.");
  std::string text;
  {
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto* begin = static_cast<const char*>(range.address);
    const auto allocation = find(all.allocations, begin);
    const auto freed = find(all.freed, begin);
    if (allocation != all.allocations.end()) {
      const size_t left = allocation->first + allocation->second.bytes - begin;
      if (range.bytes <= left) return;
      text = *work + " uses " + std::to_string(range.bytes) + " bytes of " + range.tensor + ", but only " +
             std::to_string(left) + " bytes of its memory are left there. Its shape, strides or offset exceed its memory.";
    } else if (freed != all.freed.end()) {
      const std::string& by = freed->second.by;
      text = *work + " uses " + range.tensor + ", whose memory is freed" + (by.empty() ? "" : " at " + by) +
             ". Keep the tensor that owns the memory.";
    } else {
      return;  // host memory, which some operators accept
    }
  }
  raise_finding("memory", text);
}

void check_order(const Range& range, Epoch epoch, const Work& work) {
  const auto* begin = static_cast<const char*>(range.address);
  const char* end = begin + range.bytes;
  std::optional<std::string> conflict;
  {
    std::lock_guard<std::mutex> lock(memory().mutex);
    Allocation* allocation = allocation_of(begin);
    if (!allocation || range.bytes == 0) return;
    if (allocation->owner == kHost && is_compute(epoch.actor)) allocation->owner = epoch.actor;
    auto& accesses = allocation->accesses;
    for (const Access& access : accesses) {
      const bool conflicts = access.begin < end && begin < access.end && (access.writes || range.writes);
      if (!conflicts || access.epoch.actor == epoch.actor || is_ordered(access.epoch, epoch.actor)) continue;
      conflict = conflict_text(access, range, epoch, work);
      break;
    }
    // A write replaces everything inside its range; a read replaces reads of its own actor.
    const auto is_replaced = [&](const Access& access) {
      return begin <= access.begin && access.end <= end &&
             (range.writes || (!access.writes && access.epoch.actor == epoch.actor));
    };
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_replaced), accesses.end());
    accesses.push_back({begin, end, epoch, range.writes, work});
  }
  if (conflict && is_checked(kCheckRace)) raise_finding("race", *conflict);
}

void use_until(const Range& range) {
  Memory& all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto allocation = find(all.allocations, range.address);
  if (allocation == all.allocations.end()) return;
  const size_t used = static_cast<const char*>(range.address) + range.bytes - allocation->first;
  allocation->second.used = std::max(allocation->second.used, used);
}

void check_red_zone(const Range& range, const Work& work) {
  size_t written = 0;
  {
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto allocation = find(all.allocations, range.address);
    if (allocation != all.allocations.end()) written = written_behind(allocation->first, allocation->second);
  }
  if (written > 0)
    raise_finding("memory", "something wrote " + std::to_string(written) + " bytes behind the end of " + range.tensor +
                                ", at the latest " + *work + ". " + kBehindTheEnd);
}

bool may_be_unwritten(const void* address) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  const Allocation* allocation = allocation_of(address);
  return allocation && allocation->may_be_unwritten;
}

void set_written(const void* address) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (Allocation* allocation = allocation_of(address)) allocation->may_be_unwritten = false;
}

void name_origin(const void* address, const Work& work) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  Allocation* allocation = allocation_of(address);
  if (allocation && !allocation->origin) allocation->origin = work;
}

Work origin_of(const void* address) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  const Allocation* allocation = allocation_of(address);
  return allocation ? allocation->origin : nullptr;
}

}  // namespace checks
}  // namespace virtual_npu
