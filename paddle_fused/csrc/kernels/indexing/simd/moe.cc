#include "kernels/indexing/moe_table.h"
#include "kernels/simd/math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// A row is summed part by part, so the sums stay in the L1 cache.
constexpr int64_t kPart = 512;

template <typename T>
void combine(const void* rows_data, int64_t kept, const int32_t* place, const float* probs, int64_t top_k,
             int64_t width, void* out_data) {
  const T* rows = static_cast<const T*>(rows_data);
  T* out = static_cast<T*>(out_data);
  alignas(64) float total[kPart];
  for (int64_t begin = 0; begin < width; begin += kPart) {
    const int64_t count = width - begin < kPart ? width - begin : kPart;
    for (int64_t i = 0; i < count; ++i) total[i] = 0.0f;
    for (int64_t k = 0; k < top_k; ++k) {
      if (place[k] < 0 || place[k] >= kept) continue;
      const T* row = rows + place[k] * width + begin;
      const float prob = probs ? probs[k] : 1.0f;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) total[i] += prob * to_float(row[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) from_float(total[i], out + begin + i);
  }
}

template <typename T>
float scale_and_dot(const void* dout_data, const void* row_data, float prob, int64_t width, void* drow_data) {
  const T* dout = static_cast<const T*>(dout_data);
  const T* row = static_cast<const T*>(row_data);
  T* drow = static_cast<T*>(drow_data);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) from_float(prob * to_float(dout[i]), drow + i);
  return static_cast<float>(sum(width, [=](int64_t i) { return to_float(dout[i]) * to_float(row[i]); }));
}

constexpr MoeTable kTable = {
    {combine<float>, combine<BFloat16>, combine<Float16>},
    {scale_and_dot<float>, scale_and_dot<BFloat16>, scale_and_dot<Float16>},
};

}  // namespace

const MoeTable& moe_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
