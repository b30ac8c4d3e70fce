#include "kernels/rms_norm.h"

#include <algorithm>
#include <vector>

#include "kernels/parallel.h"
#include "kernels/rms_norm_table.h"

namespace paddle_fused::kernels {
namespace {

const void* row_of(const void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<const char*>(base) + row * width * element_size(type);
}
void* row_of(void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<char*>(base) + row * width * element_size(type);
}

}  // namespace

void rms_norm_forward(ElementType type, const void* x, const void* gamma, float epsilon, int64_t rows, int64_t width,
                      void* y, float* rstd) {
  const auto run = PF_SELECT_TABLE(rms_norm_table).forward[static_cast<int>(type)];
  for_each_range(rows, width, [&](int64_t begin, int64_t end) {
    run(row_of(x, type, begin, width), gamma, epsilon, end - begin, width, row_of(y, type, begin, width),
        rstd + begin);
  });
}

void rms_norm_backward(ElementType type, const void* dy, const void* x, const float* rstd, const void* gamma,
                       int64_t rows, int64_t width, void* dx, float* dgamma) {
  const auto run = PF_SELECT_TABLE(rms_norm_table).backward[static_cast<int>(type)];
  constexpr int64_t kSmallestBlock = 16, kMostBlocks = 64;
  const int64_t block = std::max(kSmallestBlock, (rows + kMostBlocks - 1) / kMostBlocks);
  const int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(blocks * width, 0.0f);
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * block, count = std::min(block, rows - begin);
    run(row_of(dy, type, begin, width), row_of(x, type, begin, width), rstd + begin, gamma, count, width,
        row_of(dx, type, begin, width), partial.data() + b * width);
  }
  std::fill(dgamma, dgamma + width, 0.0f);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < width; ++i) dgamma[i] += partial[b * width + i];
}

}  // namespace paddle_fused::kernels
