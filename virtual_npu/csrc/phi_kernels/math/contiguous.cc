// contiguous: makes views dense, such as transposed weights and slices. Paddle's CPU kernel computes the address of
// each element separately, on one thread.
#include "kernels/elementwise/contiguous.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"

namespace virtual_npu {

template <typename T, typename Context>
void contiguous(const Context& context, const phi::DenseTensor& input, phi::DenseTensor* out) {
  phi::DenseTensorMeta meta = input.meta();
  meta.strides = meta.calc_strides(meta.dims);
  meta.offset = 0;
  out->set_meta(meta);
  T* dense = context.template Alloc<T>(out);
  if (input.numel() == 0) return;
  paddle_fused::kernels::make_contiguous(input.data<T>(), common::vectorize(input.dims()),
                                         common::vectorize(input.strides()), sizeof(T), dense);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(contiguous, npu, ALL_LAYOUT, virtual_npu::contiguous, bool, uint8_t, int8_t, int16_t, int32_t,
                          int64_t, float, double, phi::dtype::float16, phi::dtype::bfloat16, phi::dtype::complex<float>,
                          phi::dtype::complex<double>) {}
