// Distributes loops over rows among threads. For host code, never for simd/.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/workspace.h"

namespace paddle_fused::kernels {

// Memory for each thread of a loop. Create it before the loop, because an exception (no memory) in a parallel region
// terminates the process.
template <typename T>
class ThreadWorkspace {
 public:
  explicit ThreadWorkspace(int64_t count) : count_(count), all_(omp_get_max_threads() * count) {}
  T* of_this_thread() { return all_.data() + omp_get_thread_num() * count_; }

 private:
  int64_t count_;
  std::vector<T> all_;
};

// Calls body(begin, end) for consecutive ranges that cover [0, rows), on all threads. A range has about 16k elements
// and depends only on the shape, so results computed per range do not depend on the number of threads.
template <typename Body>
void for_each_range(int64_t rows, int64_t width, const Body& body) {
  constexpr int64_t kElements = 1 << 14;
  const int64_t range = std::max<int64_t>(1, kElements / std::max<int64_t>(1, width));
  const int64_t ranges = (rows + range - 1) / range;
#pragma omp parallel for schedule(static) if (ranges > 1)
  for (int64_t i = 0; i < ranges; ++i) body(i * range, std::min(rows, (i + 1) * range));
}

// Calls body(begin, end, partial) for blocks of rows, on all threads. The body adds the contribution of its rows to
// partial[count]. Returns the sum over the blocks. Blocks depend only on the number of rows and are added in order,
// so results are bit-identical for any number of threads.
template <typename Body>
std::vector<float> sum_over_row_blocks(int64_t rows, int64_t count, const Body& body) {
  constexpr int64_t kSmallestBlock = 16, kMostBlocks = 64;
  const int64_t block = std::max(kSmallestBlock, (rows + kMostBlocks - 1) / kMostBlocks);
  const int64_t blocks = (rows + block - 1) / block;
  const Workspace partial = allocate(blocks * count);
  std::vector<float> total(count, 0.0f);
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    float* sums = partial.get() + b * count;
    std::fill_n(sums, count, 0.0f);
    body(b * block, std::min(rows, (b + 1) * block), sums);
  }
  for_each_range(count, blocks, [&](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t i = begin; i < end; ++i) total[i] += partial.get()[b * count + i];
  });
  return total;
}

}  // namespace paddle_fused::kernels
