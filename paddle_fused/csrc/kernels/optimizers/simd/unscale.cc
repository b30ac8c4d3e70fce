#include "kernels/optimizers/unscale_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// 1 for Inf and NaN, whose exponent bits are all ones.
inline uint32_t is_special(float value) { return (float_to_bits(value) & 0x7f800000u) == 0x7f800000u; }

template <typename T>
bool unscale(const void* x, float factor, void* y, int64_t count) {
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  uint32_t special = 0;
#pragma omp simd reduction(| : special)
  for (int64_t i = 0; i < count; ++i) {
    const float value = to_float(from[i]);
    special |= is_special(value);
    from_float(value * factor, to + i);
  }
  return !special;
}

constexpr UnscaleTable kTable = {{unscale<float>, unscale<BFloat16>, unscale<Float16>}};

}  // namespace

const UnscaleTable& unscale_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
