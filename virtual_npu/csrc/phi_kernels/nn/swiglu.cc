// swiglu(x, y): silu(x) * y. Without y, x's last dimension contains x, then y. Unlike paddle-custom-npu, it does not
// concatenate x and y first.
#include "kernels/elementwise/gated.h"

#include <string>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "custom_ops/checks.h"
#include "element_type.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;

// How x (and y) are read: two dense tensors as one long row, one tensor as rows of two halves.
template <typename T>
struct GatedOperands {
  kernels::GatedShape shape;
  const T* gate;
  const T* up;

  GatedOperands(const DenseTensor& x, const paddle::optional<DenseTensor>& y) : gate(x.data<T>()) {
    const auto& dims = x.dims();
    if (y) {
      if (y->dims() != dims)
        PADDLE_THROW(common::errors::InvalidArgument(
            "swiglu: x has shape [%s] and y [%s]; accepted: equal shapes. Reshape or broadcast one of them.",
            dims, y->dims()));
      shape = {1, x.numel(), x.numel()};
      up = y->data<T>();
      return;
    }
    const int64_t last = dims.size() > 0 ? dims[dims.size() - 1] : 1;
    if (last % 2 != 0)
      PADDLE_THROW(common::errors::InvalidArgument(
          "swiglu: x has shape [%s]; accepted without y: an even last dimension, which contains both halves. Pass y, "
          "or an x with an even size.",
          dims));
    shape = {last > 0 ? x.numel() / last : 0, last / 2, last};
    up = gate + last / 2;
  }
};

// The card's gradient kernel processes rows that contain both halves and limits their size. The host's kernel has no
// such limit, so the check applies only if the exact kernels of a card are requested.
void check_alignment(const DenseTensor& x, bool two_tensors) {
  const auto& dims = x.dims();
  const int64_t width = (dims.size() > 0 ? dims[dims.size() - 1] : 1) * (two_tensors ? 2 : 1);
  const int64_t row = width * static_cast<int64_t>(phi::SizeOf(x.dtype()));
  if (!config().strict || row % contract::limits::swiglu_grad_alignment == 0) return;
  refuse(contract::rules::swiglu_grad_alignment, "swiglu_grad", "rows of x have " + std::to_string(row) + " bytes");
}

}  // namespace

template <typename T, typename Context>
void swiglu(const Context& context, const DenseTensor& x, const paddle::optional<DenseTensor>& y, DenseTensor* out) {
  T* result = context.template Alloc<T>(out);
  if (out->numel() == 0) return;
  const GatedOperands<T> operands(x, y);
  kernels::gated_forward(kernels::Activation::kSilu, element_type(x.dtype()), operands.shape, operands.gate,
                         operands.up, result);
}

template <typename T, typename Context>
void swiglu_grad(const Context& context, const DenseTensor& x, const paddle::optional<DenseTensor>& y,
                 const DenseTensor& out_grad, DenseTensor* x_grad, DenseTensor* y_grad) {
  T* dx = x_grad ? context.template Alloc<T>(x_grad) : nullptr;
  T* dy = y && y_grad ? context.template Alloc<T>(y_grad) : nullptr;
  if (x.numel() == 0) return;
  check_alignment(x, y.is_initialized());
  const GatedOperands<T> operands(x, y);
  T* dup = y ? dy : dx ? dx + operands.shape.width : nullptr;
  kernels::gated_backward(kernels::Activation::kSilu, element_type(x.dtype()), operands.shape, operands.gate,
                          operands.up, out_grad.data<T>(), dx, dup);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(swiglu, npu, ALL_LAYOUT, virtual_npu::swiglu, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(swiglu_grad, npu, ALL_LAYOUT, virtual_npu::swiglu_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
