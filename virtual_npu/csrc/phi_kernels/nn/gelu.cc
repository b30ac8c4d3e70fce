// gelu and its gradient in float32, bfloat16 and float16, exact or with the tanh approximation. Paddle's CPU kernel
// makes several passes over memory on one thread. It computes float64.
#include "kernels/elementwise/gelu.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;

kernels::GeluForm form_of(bool approximate) {
  return approximate ? kernels::GeluForm::kTanh : kernels::GeluForm::kNormal;
}

}  // namespace

template <typename T, typename Context>
void gelu(const Context& context, const DenseTensor& x, bool approximate, DenseTensor* out) {
  T* y = context.template Alloc<T>(out);
  if (out->numel() == 0) return;
  kernels::gelu_forward(form_of(approximate), element_type(x.dtype()), x.numel(), x.data<T>(), y);
}

template <typename T, typename Context>
void gelu_grad(const Context& context, const DenseTensor& x, const DenseTensor& out_grad, bool approximate,
               DenseTensor* x_grad) {
  T* dx = context.template Alloc<T>(x_grad);
  if (x_grad->numel() == 0) return;
  kernels::gelu_backward(form_of(approximate), element_type(x.dtype()), x.numel(), x.data<T>(), out_grad.data<T>(), dx);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(gelu, npu, ALL_LAYOUT, virtual_npu::gelu, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(gelu_grad, npu, ALL_LAYOUT, virtual_npu::gelu_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
