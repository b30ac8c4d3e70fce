#include "kernels/workspace.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <atomic>

namespace paddle_fused::kernels {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLargestKept = 64 << 20;

}  // namespace

struct KeptWorkspace::Memory {
  size_t bytes;
  float* data;

  explicit Memory(size_t wanted) : bytes((wanted + kHugePage - 1) / kHugePage * kHugePage) {
    data = static_cast<float*>(std::aligned_alloc(kHugePage, bytes));
    if (!data) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data, bytes, MADV_HUGEPAGE);  // advice: without huge pages the memory is as good, only slower
#endif
  }
  ~Memory() { std::free(data); }
};

// What the last call left. It is never freed: calls may come from threads that outlive static objects.
static std::atomic<KeptWorkspace::Memory*> kept{nullptr};

KeptWorkspace::KeptWorkspace(int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  memory_ = kept.exchange(nullptr);
  if (memory_ && memory_->bytes >= bytes) return;
  delete memory_;
  memory_ = new Memory(bytes);
}

KeptWorkspace::~KeptWorkspace() {
  if (memory_->bytes <= kLargestKept) memory_ = kept.exchange(memory_);
  delete memory_;
}

float* KeptWorkspace::get() const { return memory_->data; }

}  // namespace paddle_fused::kernels
