#include "kernels/cast.h"

#include <algorithm>

#include "kernels/cast_table.h"

namespace paddle_fused::kernels {

void cast(ElementType from, const void* x, ElementType to, void* y, int64_t count) {
  const auto run = PF_SELECT_TABLE(cast_table).run[static_cast<int>(from)][static_cast<int>(to)];
  constexpr int64_t kBlock = 1 << 14;
  if (count <= kBlock) return run(x, y, count);
  const int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * kBlock, n = std::min(kBlock, count - begin);
    run(static_cast<const char*>(x) + begin * element_size(from), static_cast<char*>(y) + begin * element_size(to), n);
  }
}

}  // namespace paddle_fused::kernels
