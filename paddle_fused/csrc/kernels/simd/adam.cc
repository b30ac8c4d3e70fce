#include "kernels/adam_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename Param, typename Grad, bool kAmsgrad, bool kMaster>
void update(const AdamScalars& scalars, const AdamArrays& arrays, int64_t begin, int64_t end) {
  Param* __restrict param = static_cast<Param*>(arrays.param);
  const Grad* __restrict grad = static_cast<const Grad*>(arrays.grad);
  float* __restrict moment1 = arrays.moment1;
  float* __restrict moment2 = arrays.moment2;
  float* __restrict moment2_max = arrays.moment2_max;
  float* __restrict master = arrays.master;
  const AdamScalars s = scalars;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]);
    const float m = s.beta1 * moment1[i] + (1.0f - s.beta1) * g;
    const float v = s.beta2 * moment2[i] + (1.0f - s.beta2) * g * g;
    moment1[i] = m;
    moment2[i] = v;
    float u = v;
    if (kAmsgrad) {
      u = v > moment2_max[i] ? v : moment2_max[i];
      moment2_max[i] = u;
    }
    const float weight = s.decay * (kMaster ? master[i] : to_float(param[i]));
    const float updated = weight - s.step_size * (m / (__builtin_sqrtf(u) + s.epsilon));
    if (kMaster) master[i] = updated;
    from_float(updated, param + i);
  }
}

template <typename Param, typename Grad>
void run(const AdamScalars& scalars, const AdamArrays& arrays, int64_t begin, int64_t end) {
  if (arrays.moment2_max) {
    return arrays.master ? update<Param, Grad, true, true>(scalars, arrays, begin, end)
                         : update<Param, Grad, true, false>(scalars, arrays, begin, end);
  }
  return arrays.master ? update<Param, Grad, false, true>(scalars, arrays, begin, end)
                       : update<Param, Grad, false, false>(scalars, arrays, begin, end);
}

constexpr AdamTable kTable = {{
    {run<float, float>, run<float, BFloat16>, run<float, Float16>},
    {run<BFloat16, float>, run<BFloat16, BFloat16>, run<BFloat16, Float16>},
    {run<Float16, float>, run<Float16, BFloat16>, run<Float16, Float16>},
}};

}  // namespace

const AdamTable& adam_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
