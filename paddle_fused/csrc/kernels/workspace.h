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

// Uninitialised, aligned to a cache line. Throws std::bad_alloc.
inline Workspace allocate(int64_t floats) {
  const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
  auto* p = static_cast<float*>(std::aligned_alloc(64, bytes));
  if (!p) throw std::bad_alloc();
  return Workspace(p);
}

// The same, but the next one finds the memory again, in huge pages where there are any: fresh pages cost short products
// a tenth of their time. Two are kept, the larger ones, of at most 64 MiB each: a product's and a packed matrix. Of more
// at the same time the others get fresh memory.
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
