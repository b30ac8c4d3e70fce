#include "kernels/optimizers/squared_norm_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// Enough independent sums to hide the latency of an addition.
constexpr int64_t kLanes = 64;

template <typename T>
float sum(const void* data, int64_t count) {
  const T* x = static_cast<const T*>(data);
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = to_float(x[i + lane]);
      lanes[lane] += value * value;
    }
  float total = 0;
  for (; i < count; ++i) total += to_float(x[i]) * to_float(x[i]);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return total + lanes[0];
}

constexpr SquaredNormTable kTable = {{sum<float>, sum<BFloat16>, sum<Float16>}};

}  // namespace

const SquaredNormTable& squared_norm_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
