// c_softmax_with_cross_entropy and its gradient: the cross entropy of logits whose classes are sharded over ranks.
//
//   x [N, C] are the logits of classes [rank C, (rank + 1) C), and l is a rank's log of the sum of exp(x):
//   L = log of the sum over ranks of exp(l),  softmax = exp(x - L),  loss = L - x[label],
//   dx = (softmax - onehot) dloss
//
// Two collectives, of N and 2 N numbers. Paddle's version for custom devices needs three, bounds x - max by -64,
// which is inconsistent with its gradient, and does not support bfloat16. The arithmetic is float32 with one
// rounding.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/losses/cross_entropy.h"
#include "kernels/no_compute_guard.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/collectives/ring.h"
#include "phi_kernels/integer_values.h"
#include "phi_kernels/optimizers/float32_arguments.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;
using phi::distributed::ReduceOp;

// The labels as classes of this rank: kOnOtherRank for other ranks' classes, kIgnored for ignore_index.
constexpr int64_t kOnOtherRank = -1, kIgnored = -2;

std::vector<int64_t> own_classes(const DenseTensor& label, int64_t classes, int rank, int ranks, int64_t ignore_index) {
  std::vector<int64_t> values = integer_values(label, "c_softmax_with_cross_entropy: labels");
  for (int64_t& value : values) {
    if (value == ignore_index) {
      value = kIgnored;
      continue;
    }
    PADDLE_ENFORCE_EQ(value >= 0 && value < classes * ranks, true,
                      common::errors::OutOfRange(
                          "c_softmax_with_cross_entropy: a label is %ld; accepted: 0 to %ld (the classes of all ranks) "
                          "and ignore_index %ld. Check the labels, or the size of the vocabulary.",
                          value, classes * ranks - 1, ignore_index));
    value = value / classes == rank ? value % classes : kOnOtherRank;
  }
  return values;
}

DenseTensor floats(const phi::CustomContext& context, std::initializer_list<int64_t> dims) {
  DenseTensor tensor;
  tensor.Resize(phi::DDim(dims.begin(), static_cast<int>(dims.size())));
  context.Alloc<float>(&tensor);
  return tensor;
}

// softmax over this rank's classes only, and the log of its sum, l [N], which is at least the row's maximum. If all
// of the rank's logits are -inf (masked classes), l is -inf as well and softmax is undefined.
void own_softmax(const float* x, int64_t rows, int64_t classes, float* softmax, float* log_sum) {
  if (kernels::compute_is_disabled()) return;
  std::vector<int64_t> largest(rows);
  for (int64_t i = 0; i < rows; ++i)
    largest[i] = std::max_element(x + i * classes, x + (i + 1) * classes) - (x + i * classes);
  // The loss of the largest class is l minus its logit, without cancellation.
  kernels::cross_entropy_forward({kernels::ElementType::kFloat32, rows, classes, 1, true, largest.data(), nullptr, -1},
                                 x, softmax, log_sum);
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < rows; ++i) {
    const float most = x[i * classes + largest[i]];
    log_sum[i] = most == kNothing ? kNothing : log_sum[i] + most;
  }
}

}  // namespace

template <typename T, typename Context>
void c_softmax_with_cross_entropy(const Context& context, const DenseTensor& logits, const DenseTensor& label,
                                  int64_t ignore_index, int rank, int ranks, DenseTensor* softmax, DenseTensor* loss) {
  Float32Arguments arguments(context);
  const float* x = arguments.input(&logits)->template data<float>();
  const int64_t classes = logits.dims()[logits.dims().size() - 1];
  const int64_t rows = logits.numel() / std::max<int64_t>(1, classes);
  context.template Alloc<T>(softmax);
  context.template Alloc<T>(loss);
  if (rows == 0) return;
  const std::vector<int64_t> labels = own_classes(label, classes, rank, ranks, ignore_index);
  DenseTensor *softmax32 = arguments.output(softmax), *loss32 = arguments.output(loss);
  float* probabilities = context.template Alloc<float>(softmax32);
  float* losses = context.template Alloc<float>(loss32);

  DenseTensor log_sum = floats(context, {rows}), largest = floats(context, {rows}), sums = floats(context, {2, rows});
  float *own = log_sum.data<float>(), *most = largest.data<float>(), *sum = sums.data<float>();
  own_softmax(x, rows, classes, probabilities, own);
  const Ring others(context);
  others.all_reduce(ReduceOp::MAX, log_sum, &largest);
  context.Wait();
  for (int64_t i = 0; i < rows && !kernels::compute_is_disabled(); ++i) {
    sum[i] = std::exp(own[i] - most[i]);
    sum[rows + i] = labels[i] >= 0 ? x[i * classes + labels[i]] - most[i] : 0.0f;
  }
  others.all_reduce(ReduceOp::SUM, sums, &sums);
  context.Wait();
  for (int64_t i = 0; i < rows && !kernels::compute_is_disabled(); ++i) {
    const float log_all = std::log(sum[i]), share = std::exp(own[i] - most[i] - log_all);
    // Not multiplied if the share is 0, because the probability may be NaN.
    for (int64_t c = 0; c < classes; ++c)
      probabilities[i * classes + c] = share == 0 ? 0.0f : probabilities[i * classes + c] * share;
    losses[i] = labels[i] == kIgnored ? 0.0f : log_all - sum[rows + i];
  }
  arguments.store();
}

template <typename T, typename Context>
void c_softmax_with_cross_entropy_grad(const Context& context, const DenseTensor& softmax, const DenseTensor& label,
                                       const DenseTensor& loss_grad, int64_t ignore_index, int rank, int ranks,
                                       DenseTensor* logits_grad) {
  const int64_t classes = softmax.dims()[softmax.dims().size() - 1];
  const T *probabilities = softmax.data<T>(), *dloss = loss_grad.data<T>();
  T* dx = context.template Alloc<T>(logits_grad);
  if (softmax.numel() == 0) return;
  const std::vector<int64_t> labels = own_classes(label, classes, rank, ranks, ignore_index);
  for (int64_t i = 0; i < static_cast<int64_t>(labels.size()); ++i) {
    const float scale = labels[i] == kIgnored ? 0.0f : static_cast<float>(dloss[i]);
    for (int64_t c = 0; c < classes; ++c) {
      const float one = c == labels[i] ? 1.0f : 0.0f;
      dx[i * classes + c] = static_cast<T>((static_cast<float>(probabilities[i * classes + c]) - one) * scale);
    }
  }
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(c_softmax_with_cross_entropy, npu, ALL_LAYOUT, virtual_npu::c_softmax_with_cross_entropy,
                          float, phi::dtype::float16, phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(c_softmax_with_cross_entropy_grad, npu, ALL_LAYOUT,
                          virtual_npu::c_softmax_with_cross_entropy_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
