// How loops over rows are shared among threads. For kernels/*.cc, never for simd/.
#pragma once
#include <algorithm>
#include <cstdint>

namespace paddle_fused::kernels {

// Calls body(begin, end) for consecutive ranges that cover [0, rows), on all threads. A range holds about 16k elements
// and depends on the shape only, so a result that is computed range by range does not depend on the number of threads.
template <typename Body>
void for_each_range(int64_t rows, int64_t width, const Body& body) {
  constexpr int64_t kElements = 1 << 14;
  const int64_t range = std::max<int64_t>(1, kElements / std::max<int64_t>(1, width));
  const int64_t ranges = (rows + range - 1) / range;
#pragma omp parallel for schedule(static) if (ranges > 1)
  for (int64_t i = 0; i < ranges; ++i) body(i * range, std::min(rows, (i + 1) * range));
}

}  // namespace paddle_fused::kernels
