#include "kernels/adam.h"

#include <algorithm>

#include "kernels/adam_table.h"

namespace paddle_fused::kernels {

void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count) {
  const auto run =
      PF_SELECT_TABLE(adam_table).run[static_cast<int>(arrays.param_type)][static_cast<int>(arrays.grad_type)];
  constexpr int64_t kBlock = 1 << 13;
  if (count <= kBlock) return run(scalars, arrays, 0, count);
  const int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; ++b) run(scalars, arrays, b * kBlock, std::min(count, (b + 1) * kBlock));
}

}  // namespace paddle_fused::kernels
