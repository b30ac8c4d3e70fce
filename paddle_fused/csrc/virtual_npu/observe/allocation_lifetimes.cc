#include "virtual_npu/observe/allocation_lifetimes.h"

#include <memory>
#include <mutex>
#include <unordered_set>

#include "virtual_npu/bridge/views.h"
#include "virtual_npu/observe/journal.h"

namespace virtual_npu {
namespace {

// Allocations whose lives are journalled.
struct Lives {
  std::mutex mutex;
  std::unordered_set<const phi::Allocation*> all;
  uint64_t count = 0;
};
// Never destroyed: tensors outlive the plugin's static objects.
Lives& lives() {
  static auto* lives = new Lives;
  return *lives;
}

void end(const phi::Allocation* allocation, uint64_t id) {
  {
    std::lock_guard<std::mutex> lock(lives().mutex);
    lives().all.erase(allocation);
  }
  journal::free(id);
}

}  // namespace

bool journal_life(phi::DenseTensor* tensor, const std::string& by) {
  if (!tensor || !tensor->holder_ || !on_npu(tensor->holder_) || tensor->holder_->size() == 0) return false;
  phi::Allocation* allocation = tensor->holder_.get();
  uint64_t id;
  {
    std::lock_guard<std::mutex> lock(lives().mutex);
    if (!lives().all.insert(allocation).second) return false;
    id = ++lives().count;
  }
  journal::allocate(id, allocation->size(), by);
  // The same allocation under another owner, which hears of its end. (Streams know allocations by their class.)
  const auto end_of_life = [origin = tensor->holder_, id](phi::Allocation* ended) mutable {
    end(ended, id);
    origin.reset();
  };
  tensor->holder_ = Holder(allocation, end_of_life);
  return true;
}

}  // namespace virtual_npu
