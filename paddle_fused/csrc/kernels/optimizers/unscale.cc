#include "kernels/optimizers/unscale.h"

#include <atomic>

#include "kernels/optimizers/unscale_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

bool unscale(ElementType type, const void* x, float factor, void* y, int64_t count) {
  const auto run = PF_SELECT_TABLE(unscale_table).run[static_cast<int>(type)];
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(y);
  std::atomic<bool> finite{true};
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    const int64_t offset = begin * element_size(type);
    if (!run(from + offset, factor, to + offset, end - begin)) finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

}  // namespace paddle_fused::kernels
