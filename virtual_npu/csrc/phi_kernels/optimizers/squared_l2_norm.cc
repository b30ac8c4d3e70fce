// squared_l2_norm in float32, bfloat16 and float16, on all threads, summed in float32 and double. Paddle's CPU kernel
// uses one thread and does not support 16-bit types.
#include "kernels/optimizers/squared_norm.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"

namespace virtual_npu {

template <typename T, typename Context>
void squared_l2_norm(const Context& context, const phi::DenseTensor& x, phi::DenseTensor* out) {
  const double sum =
      x.numel() ? paddle_fused::kernels::squared_norm(element_type(x.dtype()), x.data<T>(), x.numel()) : 0.0;
  *context.template Alloc<T>(out) = static_cast<T>(static_cast<float>(sum));
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(squared_l2_norm, npu, ALL_LAYOUT, virtual_npu::squared_l2_norm, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
