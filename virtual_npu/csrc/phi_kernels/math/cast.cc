// cast between float32, bfloat16 and float16, on all threads. Paddle's CPU kernel for the other types uses one
// thread.
#include "kernels/elementwise/cast.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "bridge/install.h"
#include "element_type.h"
#include "phi_kernels/npu_kernel.h"
#include "phi_kernels/optimizers/float32_arguments.h"

namespace virtual_npu {

template <typename T, typename Context>
void cast(const Context& context, const phi::DenseTensor& x, phi::DataType out_dtype, phi::DenseTensor* out) {
  const bool host = out_dtype == phi::DataType::FLOAT32 || is_16_bit_float(out_dtype);
  // An in-place result has a different size.
  if (host && x.numel() > 0 && !out->IsSharedBufferWith(x)) return cast_tensor(context, x, out_dtype, out);
  using Function = void (*)(const phi::DeviceContext&, const phi::DenseTensor&, phi::DataType, phi::DenseTensor*);
  static const auto bridged = npu_kernel<Function>(context, bridged_name("cast"), phi::CppTypeToDataType<T>::Type());
  bridged(context, x, out_dtype, out);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(cast, npu, ALL_LAYOUT, virtual_npu::cast, float, phi::dtype::float16, phi::dtype::bfloat16) {
  kernel->OutputAt(0).SetDataType(phi::DataType::UNDEFINED);
}
