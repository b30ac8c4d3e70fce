// cross_entropy_with_softmax in float32, bfloat16 and float16: hard and soft labels, any axis. Paddle's CPU kernel
// computes float64.
#include "kernels/losses/cross_entropy.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/integer_values.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;

// The problem for the host kernel, and the memory of its labels.
struct Problem {
  kernels::CrossEntropyProblem host;
  std::vector<int64_t> hard_labels;

  template <typename T>
  static Problem of(const DenseTensor& x, const DenseTensor& label, bool soft_label, bool use_softmax,
                    int ignore_index, int axis) {
    const auto& dims = x.dims();
    if (axis < 0) axis += dims.size();
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < axis; ++i) outer *= dims[i];
    for (int i = axis + 1; i < dims.size(); ++i) inner *= dims[i];
    const auto type = element_type(x.dtype());
    Problem problem{{type, outer, dims[axis], inner, use_softmax, nullptr, nullptr, ignore_index}, {}};
    if (soft_label) {
      if (label.dtype() != x.dtype())
        PADDLE_THROW(common::errors::InvalidArgument(
            "cross_entropy: soft labels are %s and the logits %s; accepted: equal dtypes. Cast one of them with "
            "tensor.astype.",
            phi::DataTypeToString(label.dtype()), phi::DataTypeToString(x.dtype())));
      problem.host.soft_labels = label.data<T>();
      return problem;
    }
    problem.hard_labels = integer_values(label, "cross_entropy: hard labels");
    problem.host.hard_labels = problem.hard_labels.data();
    for (int64_t value : problem.hard_labels) {
      if (value == ignore_index || (value >= 0 && value < dims[axis])) continue;
      PADDLE_THROW(common::errors::OutOfRange(
          "cross_entropy: a label is %ld; accepted: 0 to %ld (the classes of the logits) and ignore_index %d. Check "
          "the labels, or the size of the vocabulary.",
          value, dims[axis] - 1, ignore_index));
    }
    return problem;
  }
};

}  // namespace

template <typename T, typename Context>
void cross_entropy(const Context& context, const DenseTensor& logits, const DenseTensor& label, bool soft_label,
                   bool use_softmax, bool /*numeric_stable_mode*/, int ignore_index, int axis, DenseTensor* softmax,
                   DenseTensor* loss) {
  T* probabilities = context.template Alloc<T>(softmax);
  T* losses = context.template Alloc<T>(loss);
  if (logits.numel() == 0) {
    std::fill(losses, losses + loss->numel(), static_cast<T>(0.0f));
    return;
  }
  const Problem problem = Problem::of<T>(logits, label, soft_label, use_softmax, ignore_index, axis);
  kernels::cross_entropy_forward(problem.host, logits.data<T>(), probabilities, losses);
}

template <typename T, typename Context>
void cross_entropy_grad(const Context& context, const DenseTensor& label, const DenseTensor& softmax,
                        const DenseTensor& loss_grad, bool soft_label, bool use_softmax, bool /*numeric_stable_mode*/,
                        int ignore_index, int axis, DenseTensor* logits_grad) {
  const T* probabilities = softmax.data<T>();
  T* dx = context.template Alloc<T>(logits_grad);
  if (logits_grad->numel() == 0) return;
  const Problem problem = Problem::of<T>(softmax, label, soft_label, use_softmax, ignore_index, axis);
  kernels::cross_entropy_backward(problem.host, probabilities, loss_grad.data<T>(), dx);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(cross_entropy_with_softmax, npu, ALL_LAYOUT, virtual_npu::cross_entropy, float,
                          phi::dtype::float16, phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(cross_entropy_with_softmax_grad, npu, ALL_LAYOUT, virtual_npu::cross_entropy_grad, float,
                          phi::dtype::float16, phi::dtype::bfloat16) {}
