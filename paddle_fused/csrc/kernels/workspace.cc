#include "kernels/workspace.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <mutex>
#include <utility>

namespace paddle_fused::kernels {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLargestCached = 64 << 20;

}  // namespace

struct CachedWorkspace::Memory {
  size_t bytes;
  float* data;

  explicit Memory(size_t wanted) : bytes((wanted + kHugePage - 1) / kHugePage * kHugePage) {
    data = static_cast<float*>(std::aligned_alloc(kHugePage, bytes));
    if (!data) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint; small pages are only slower
#endif
  }
  ~Memory() { std::free(data); }
};

namespace {

using Memory = CachedWorkspace::Memory;

// Memory kept from earlier calls.
class WorkspaceCache {
 public:
  // The smallest block of at least this many bytes, or nullptr.
  Memory* take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Memory** best = nullptr;
    for (Memory*& one : all_)
      if (one && one->bytes >= bytes && (!best || one->bytes < (*best)->bytes)) best = &one;
    return best ? std::exchange(*best, nullptr) : nullptr;
  }

  // Returns the block that is not kept.
  Memory* keep(Memory* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Memory*& one : all_)
      if (memory && (!one || one->bytes < memory->bytes)) std::swap(one, memory);
    return memory;
  }

 private:
  std::mutex mutex_;
  Memory* all_[2] = {};
};

// Never freed, because calls may come from threads that outlive static objects.
WorkspaceCache& cache() {
  static auto* cache = new WorkspaceCache;
  return *cache;
}

}  // namespace

CachedWorkspace::CachedWorkspace(int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  memory_ = cache().take(bytes);
  if (!memory_) memory_ = new Memory(bytes);
}

CachedWorkspace::~CachedWorkspace() { delete (memory_->bytes <= kLargestCached ? cache().keep(memory_) : memory_); }

float* CachedWorkspace::get() const { return memory_->data; }

}  // namespace paddle_fused::kernels
