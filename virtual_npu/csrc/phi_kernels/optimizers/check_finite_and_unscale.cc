// check_finite_and_unscale(xs, scale): out = x / scale for each x; found_infinite = whether any x contains an Inf or
// NaN. As on the NPU, the division is always done, whereas Paddle's CPU kernel zeroes the outputs if it finds one. It
// also supports bfloat16 and float16, with a float32 scale. Paddle's CPU kernel computes float64.
// If the FloatStatus determines overflow and a library answers for it, no overflow is found, because the library does
// not compute any.
#include "kernels/optimizers/unscale.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "observe/aclop.h"

namespace virtual_npu {

template <typename T, typename Context>
void check_finite_and_unscale(const Context& context, const std::vector<const phi::DenseTensor*>& xs,
                              const phi::DenseTensor& scale, std::vector<phi::DenseTensor*> outs,
                              phi::DenseTensor* found_infinite) {
  // Like Paddle's kernels, divides by multiplying with the rounded reciprocal.
  const float factor = 1.0f / *scale.data<float>();
  bool finite = true;
  for (size_t i = 0; i < xs.size(); ++i) {
    T* out = context.template Alloc<T>(outs[i]);
    const int64_t count = xs[i]->numel();
    if (count > 0)
      finite &= paddle_fused::kernels::unscale(element_type(xs[i]->dtype()), xs[i]->data<T>(), factor, out, count);
  }
  if (overflow_is_float_status()) {
    get_float_status();
    finite = true;
  }
  *context.template Alloc<bool>(found_infinite) = !finite;
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(check_finite_and_unscale, npu, ALL_LAYOUT, virtual_npu::check_finite_and_unscale, float,
                          phi::dtype::float16, phi::dtype::bfloat16) {
  kernel->InputAt(1).SetDataType(phi::DataType::FLOAT32);
  kernel->OutputAt(1).SetDataType(phi::DataType::BOOL);
}
