#include "kernels/finite.h"

#include <atomic>

#include "kernels/finite_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

// Whether `body(begin, end)` holds for every range of [0, count); it is called for all of them.
template <typename Body>
bool holds_everywhere(int64_t count, const Body& body) {
  std::atomic<bool> holds{true};
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    if (!body(begin, end)) holds.store(false, std::memory_order_relaxed);
  });
  return holds;
}

}  // namespace

bool all_finite(ElementType type, const void* x, int64_t count) {
  const auto run = PF_SELECT_TABLE(finite_table).all_finite[static_cast<int>(type)];
  const char* bytes = static_cast<const char*>(x);
  return holds_everywhere(
      count, [&](int64_t begin, int64_t end) { return run(bytes + begin * element_size(type), end - begin); });
}

bool unscale(ElementType type, const void* x, float factor, void* y, int64_t count) {
  const auto run = PF_SELECT_TABLE(finite_table).unscale[static_cast<int>(type)];
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(y);
  return holds_everywhere(count, [&](int64_t begin, int64_t end) {
    const int64_t offset = begin * element_size(type);
    return run(from + offset, factor, to + offset, end - begin);
  });
}

}  // namespace paddle_fused::kernels
