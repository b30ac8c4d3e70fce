#include "kernels/optimizers/squared_norm.h"

#include "kernels/optimizers/squared_norm_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

double squared_norm(ElementType type, const void* x, int64_t count) {
  constexpr int64_t kRange = 1 << 14;
  const auto sum = PF_SELECT_TABLE(squared_norm_table).sum[static_cast<int>(type)];
  std::vector<float> sums((count + kRange - 1) / kRange);
  for_each_range(sums.size(), kRange, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      sums[i] = sum(static_cast<const char*>(x) + i * kRange * element_size(type), std::min(kRange, count - i * kRange));
  });
  double total = 0;
  for (float part : sums) total += part;
  return total;
}

}  // namespace paddle_fused::kernels
