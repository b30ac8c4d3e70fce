#include "observe/allocation_lifetimes.h"

#include <memory>
#include <mutex>
#include <unordered_set>

#include "bridge/views.h"
#include "observe/journal.h"

namespace virtual_npu {
namespace {

// Allocations whose lifetimes are journaled.
struct TrackedAllocations {
  std::mutex mutex;
  std::unordered_set<const phi::Allocation*> all;
  uint64_t count = 0;
};
// Never destroyed, because tensors outlive the plugin's static objects.
TrackedAllocations& tracked() {
  static auto* allocations = new TrackedAllocations;
  return *allocations;
}

void end(const phi::Allocation* allocation, uint64_t id) {
  {
    std::lock_guard<std::mutex> lock(tracked().mutex);
    tracked().all.erase(allocation);
  }
  journal::free(id);
}

}  // namespace

bool track_lifetime(phi::DenseTensor* tensor, const std::string& by) {
  if (!tensor || !tensor->holder_ || !on_npu(tensor->holder_) || tensor->holder_->size() == 0) return false;
  phi::Allocation* allocation = tensor->holder_.get();
  uint64_t id;
  {
    std::lock_guard<std::mutex> lock(tracked().mutex);
    if (!tracked().all.insert(allocation).second) return false;
    id = ++tracked().count;
  }
  journal::allocate(id, allocation->size(), by);
  // The same allocation under another owner, whose deleter records its end. (Streams identify allocations by class.)
  const auto end_of_life = [origin = tensor->holder_, id](phi::Allocation* ended) mutable {
    end(ended, id);
    origin.reset();
  };
  tensor->holder_ = Holder(allocation, end_of_life);
  return true;
}

}  // namespace virtual_npu
