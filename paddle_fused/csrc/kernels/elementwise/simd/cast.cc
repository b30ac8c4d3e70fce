#include "kernels/elementwise/cast_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename From, typename To>
void run(const void* x, void* y, int64_t count) {
  const From* from = static_cast<const From*>(x);
  To* to = static_cast<To*>(y);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(to_float(from[i]), to + i);
}

constexpr CastTable kTable = {{
    {run<float, float>, run<float, BFloat16>, run<float, Float16>},
    {run<BFloat16, float>, run<BFloat16, BFloat16>, run<BFloat16, Float16>},
    {run<Float16, float>, run<Float16, BFloat16>, run<Float16, Float16>},
}};

}  // namespace

const CastTable& cast_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
