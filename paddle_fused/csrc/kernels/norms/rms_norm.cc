#include "kernels/norms/rms_norm.h"

#include <algorithm>

#include "kernels/cache.h"
#include "kernels/no_compute_guard.h"
#include "kernels/norms/rms_norm_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

const void* row_of(const void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<const char*>(base) + row * width * element_size(type);
}
void* row_of(void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<char*>(base) + row * width * element_size(type);
}

// Whether the outputs of a call with this many tensors [rows, width] bypass the caches.
bool streams(int tensors, ElementType type, int64_t rows, int64_t width) {
  return outgrows_cache(tensors * rows * width * element_size(type));
}

}  // namespace

void rms_norm_forward(ElementType type, ElementType gamma_type, const void* x, const void* gamma, float epsilon,
                      int64_t rows, int64_t width, void* y, float* rstd) {
  if (compute_is_disabled()) return;
  const auto run =
      PF_SELECT_TABLE(rms_norm_table).forward[static_cast<int>(type)][gamma_type == ElementType::kFloat32];
  const bool stream = streams(2, type, rows, width);
  for_each_range(rows, width, [&](int64_t begin, int64_t end) {
    run(row_of(x, type, begin, width), gamma, epsilon, end - begin, width, stream, row_of(y, type, begin, width),
        rstd + begin);
  });
}

void add_rms_norm_forward(ElementType type, const void* x, const void* residual, const void* gamma, float epsilon,
                          int64_t rows, int64_t width, void* y, void* sum, float* rstd) {
  if (compute_is_disabled()) return;
  const auto run = PF_SELECT_TABLE(rms_norm_table).add_forward[static_cast<int>(type)];
  const bool stream = streams(4, type, rows, width);
  ThreadWorkspace<float> again(width);
  for_each_range(rows, width, [&](int64_t begin, int64_t end) {
    run(row_of(x, type, begin, width), row_of(residual, type, begin, width), gamma, epsilon, end - begin, width,
        stream, again.of_this_thread(), row_of(y, type, begin, width), row_of(sum, type, begin, width), rstd + begin);
  });
}

void rms_norm_backward(ElementType type, ElementType gamma_type, const void* dy, const void* x, const float* rstd,
                       const void* gamma, const void* dsum, int64_t rows, int64_t width,
                       void* dx, void* dresidual, float* dgamma) {
  if (compute_is_disabled()) return;
  const auto run =
      PF_SELECT_TABLE(rms_norm_table).backward[static_cast<int>(type)][gamma_type == ElementType::kFloat32];
  const bool stream = streams(3 + (dsum != nullptr) + (dresidual != nullptr), type, rows, width);
  const auto total = sum_over_row_blocks(rows, rms_norm_sums(width), [&](int64_t begin, int64_t end, float* partial) {
    run(row_of(dy, type, begin, width), row_of(x, type, begin, width), rstd + begin, gamma,
        dsum ? row_of(dsum, type, begin, width) : nullptr, end - begin, width, stream, row_of(dx, type, begin, width),
        dresidual ? row_of(dresidual, type, begin, width) : nullptr, partial);
  });
  std::copy_n(total.begin(), width, dgamma);
}

}  // namespace paddle_fused::kernels
