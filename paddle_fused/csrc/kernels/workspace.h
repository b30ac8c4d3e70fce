// Memory that a kernel needs while it runs. For host code, never for simd/.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace paddle_fused::kernels {

struct FreeAligned {
  void operator()(float* p) const { std::free(p); }
};
using Workspace = std::unique_ptr<float, FreeAligned>;

// Uninitialized, aligned to a cache line. Throws std::bad_alloc.
inline Workspace allocate(int64_t floats) {
  const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
  auto* p = static_cast<float*>(std::aligned_alloc(64, bytes));
  if (!p) throw std::bad_alloc();
  return Workspace(p);
}

// Like allocate, but the memory is reused by later calls, in huge pages if available: fresh pages cost a short
// product a tenth of its time. The two largest blocks are kept, of at most 64 MiB each, for a product and a packed
// matrix. Further concurrent blocks get fresh memory.
class CachedWorkspace {
 public:
  struct Memory;

  explicit CachedWorkspace(int64_t floats);
  ~CachedWorkspace();
  CachedWorkspace(const CachedWorkspace&) = delete;
  CachedWorkspace& operator=(const CachedWorkspace&) = delete;
  float* get() const;

 private:
  Memory* memory_;
};

}  // namespace paddle_fused::kernels
