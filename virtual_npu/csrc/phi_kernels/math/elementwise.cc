// add, multiply and their gradients in float32, bfloat16 and float16, and scale in 16 bits: one pass over memory on
// all threads. Paddle's CPU kernels use one thread and are slow or missing for 16-bit types. They still compute
// operands of two dtypes and gradients summed over broadcast dimensions, in float32. The exception is the gradient of
// a row added to
// every row, such as the bias of a linear layer: it is computed here, in the order and with the bits of a plain loop.
#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"
#include "bridge/install.h"
#include "element_type.h"
#include "phi_kernels/npu_kernel.h"
#include "phi_kernels/optimizers/float32_arguments.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using kernels::BinaryOp;
using phi::DenseTensor;

struct Add {
  static constexpr auto kOp = BinaryOp::kAdd;
  static constexpr char kName[] = "add", kGradient[] = "add_grad";
};
struct Multiply {
  static constexpr auto kOp = BinaryOp::kMultiply;
  static constexpr char kName[] = "multiply", kGradient[] = "multiply_grad";
};

template <typename Op, typename T>
void bridged_grad(const phi::CustomContext& context, const DenseTensor& x, const DenseTensor& y,
                  const DenseTensor& out_grad, int axis, DenseTensor* x_grad, DenseTensor* y_grad) {
  using Function = void (*)(const phi::DeviceContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, int,
                            DenseTensor*, DenseTensor*);
  // Paddle's multiply_grad in bfloat16 rounds every product before summing.
  constexpr bool in_float32 = Op::kOp == BinaryOp::kMultiply && sizeof(T) == 2;
  const auto type = in_float32 ? phi::DataType::FLOAT32 : phi::CppTypeToDataType<T>::Type();
  static const auto bridged = npu_kernel<Function>(context, bridged_name(Op::kGradient), type);
  if constexpr (in_float32) {
    Float32Arguments float32(context);
    DenseTensor zeros;
    // An operand is not saved for backward if the other one needs no gradient, but the kernel requires some memory.
    const auto operand = [&](const DenseTensor& tensor, const DenseTensor* gradient_of_other) -> const DenseTensor& {
      if (gradient_of_other) return *float32.input(&tensor);
      zeros.Resize(tensor.dims());
      std::fill_n(context.Alloc<float>(&zeros), zeros.numel(), 0.0f);
      return zeros;
    };
    const DenseTensor &wide_x = operand(x, y_grad), &wide_y = operand(y, x_grad);
    const DenseTensor& wide_grad = *float32.input(&out_grad);
    DenseTensor *dx = float32.output(x_grad), *dy = float32.output(y_grad);
    bridged(context, wide_x, wide_y, wide_grad, axis, dx, dy);
    float32.store();
  } else {
    bridged(context, x, y, out_grad, axis, x_grad, y_grad);
  }
}

// Whether `tensor` is added to every row of `out`, that is, has the shape of the last dimensions of `out`.
bool is_row(const DenseTensor& tensor, const DenseTensor& out) {
  int first = 0;
  while (first < tensor.dims().size() && tensor.dims()[first] == 1) ++first;
  const int size = tensor.dims().size() - first, skipped = out.dims().size() - size;
  if (size == 0 || skipped < 0) return false;
  for (int i = 0; i < size; ++i)
    if (tensor.dims()[first + i] != out.dims()[skipped + i]) return false;
  return true;
}

// The gradient of an operand of `add`, with out's shape or the shape of a row.
template <typename T>
void summand_grad(const DenseTensor& summand, const DenseTensor& out_grad, T* gradient) {
  if (summand.dims() != out_grad.dims()) {
    const int64_t width = summand.numel();
    kernels::sum_rows(element_type(out_grad.dtype()), out_grad.numel() / width, width, out_grad.data<T>(), gradient);
  } else if (gradient != out_grad.data<T>()) {
    kernels::copy(out_grad.data<T>(), out_grad.numel() * sizeof(T), gradient);
  }
}

}  // namespace

template <typename Op, typename T, typename Context>
void binary(const Context& context, const DenseTensor& x, const DenseTensor& y, DenseTensor* out) {
  const auto shape = [](const DenseTensor& tensor) { return common::vectorize(tensor.dims()); };
  if (x.dtype() == y.dtype() && x.dims() == y.dims() && x.numel() > 0) {
    T* result = context.template Alloc<T>(out);
    return kernels::binary(Op::kOp, element_type(x.dtype()), x.numel(), x.data<T>(), y.data<T>(), result);
  }
  kernels::Broadcast loops;
  if (x.dtype() != y.dtype() || !kernels::broadcast(shape(x), shape(y), shape(*out), &loops)) {
    using Function = void (*)(const phi::DeviceContext&, const DenseTensor&, const DenseTensor&, DenseTensor*);
    static const auto bridged =
        npu_kernel<Function>(context, bridged_name(Op::kName), phi::CppTypeToDataType<T>::Type());
    return bridged(context, x, y, out);
  }
  T* result = context.template Alloc<T>(out);
  if (out->numel() > 0) kernels::binary(Op::kOp, element_type(x.dtype()), loops, x.data<T>(), y.data<T>(), result);
}

template <typename Op, typename T, typename Context>
void binary_grad(const Context& context, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                 int axis, DenseTensor* x_grad, DenseTensor* y_grad) {
  if (out_grad.numel() == 0) {  // a broadcast operand is not empty; its gradient is a sum of no terms
    for (DenseTensor* gradient : {x_grad, y_grad})
      if (gradient) std::fill_n(context.template Alloc<T>(gradient), gradient->numel(), static_cast<T>(0.0f));
    return;
  }
  const auto fits = [&](const DenseTensor& operand) {
    return operand.dtype() == out_grad.dtype() &&
           (operand.dims() == out_grad.dims() || (Op::kOp == BinaryOp::kAdd && axis == -1 && is_row(operand, out_grad)));
  };
  if (!fits(x) || !fits(y)) return bridged_grad<Op, T>(context, x, y, out_grad, axis, x_grad, y_grad);
  // x_grad may share out_grad's memory, so it is written last.
  T* dx = x_grad ? context.template Alloc<T>(x_grad) : nullptr;
  T* dy = y_grad ? context.template Alloc<T>(y_grad) : nullptr;
  if constexpr (Op::kOp == BinaryOp::kAdd) {  // the values of x and y are not saved for backward
    if (dy) summand_grad(y, out_grad, dy);
    if (dx) summand_grad(x, out_grad, dx);
  } else {
    const T* dout = out_grad.data<T>();
    const auto type = element_type(out_grad.dtype());
    if (dy) kernels::binary(BinaryOp::kMultiply, type, out_grad.numel(), dout, x.data<T>(), dy);
    if (dx) kernels::binary(BinaryOp::kMultiply, type, out_grad.numel(), dout, y.data<T>(), dx);
  }
}

template <typename T, typename Context>
void add(const Context& context, const DenseTensor& x, const DenseTensor& y, DenseTensor* out) {
  binary<Add, T>(context, x, y, out);
}

template <typename T, typename Context>
void add_grad(const Context& context, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad, int axis,
              DenseTensor* x_grad, DenseTensor* y_grad) {
  binary_grad<Add, T>(context, x, y, out_grad, axis, x_grad, y_grad);
}

template <typename T, typename Context>
void multiply(const Context& context, const DenseTensor& x, const DenseTensor& y, DenseTensor* out) {
  binary<Multiply, T>(context, x, y, out);
}

template <typename T, typename Context>
void multiply_grad(const Context& context, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                   int axis, DenseTensor* x_grad, DenseTensor* y_grad) {
  binary_grad<Multiply, T>(context, x, y, out_grad, axis, x_grad, y_grad);
}

template <typename T, typename Context>
void scale(const Context& context, const DenseTensor& x, const phi::Scalar& factor, const phi::Scalar& bias,
           bool bias_after_scale, DenseTensor* out) {
  T* result = context.template Alloc<T>(out);
  if (out->numel() == 0) return;
  const float a = factor.to<float>(), b = bias.to<float>();
  kernels::scale(element_type(x.dtype()), a, bias_after_scale ? b : a * b, x.numel(), x.data<T>(), result);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(add, npu, ALL_LAYOUT, virtual_npu::add, float, phi::dtype::float16, phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(add_grad, npu, ALL_LAYOUT, virtual_npu::add_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(multiply, npu, ALL_LAYOUT, virtual_npu::multiply, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(multiply_grad, npu, ALL_LAYOUT, virtual_npu::multiply_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(scale, npu, ALL_LAYOUT, virtual_npu::scale, phi::dtype::float16, phi::dtype::bfloat16) {}
