#include "kernels/norms/dropout_add_norm.h"

#include "kernels/cache.h"
#include "kernels/elementwise/cast.h"
#include "kernels/no_compute_guard.h"
#include "kernels/norms/dropout_add_norm_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

template <typename Function>
Function choose(const Function (&functions)[3][2][2], const DropoutAddNorm& p) {
  return functions[static_cast<int>(p.type)][p.pre_type == ElementType::kFloat32]
                  [p.weight_type == ElementType::kFloat32];
}

// Whether the outputs of a call with this many tensors of x0's and of pre's type bypass the caches.
bool streams(const DropoutAddNorm& p, int of_type, int of_pre_type) {
  return outgrows_cache(p.rows * p.width * (of_type * element_size(p.type) + of_pre_type * element_size(p.pre_type)));
}

}  // namespace

void dropout_add_norm_forward(const DropoutAddNorm& problem, void* out, void* pre, uint8_t* mask, float* mean,
                              float* rstd) {
  if (compute_is_disabled()) return;
  const auto run = choose(PF_SELECT_TABLE(dropout_add_norm_table).forward, problem);
  const bool stream = streams(problem, 2, 1 + (problem.residual != nullptr));
  ThreadWorkspace<float> workspace(kDropoutAddNormRows * dropout_add_norm_row(problem.width));
  for_each_range(problem.rows, problem.width, [&](int64_t begin, int64_t end) {
    run(problem, begin, end, workspace.of_this_thread(), stream, out, pre, mask, mean, rstd);
  });
}

void dropout_add_norm_backward(const DropoutAddNorm& problem, const void* out_grad, const void* pre_grad,
                               const void* pre, const float* mean, const float* rstd,
                               const DropoutAddNormGradients& gradients) {
  if (compute_is_disabled()) return;
  const auto run = choose(PF_SELECT_TABLE(dropout_add_norm_table).backward, problem);
  const int64_t width = problem.width, row = dropout_add_norm_row(width);
  const bool stream = streams(problem, (out_grad != nullptr) + (gradients.x0 != nullptr),
                              1 + (pre_grad != nullptr) + (gradients.residual != nullptr));
  ThreadWorkspace<float> workspace(kDropoutAddNormRows * row);
  const int64_t bias = row, layerscale = bias + (gradients.bias ? row : 0);
  const int64_t count = layerscale + (gradients.layerscale ? row : 0);
  const auto sums = sum_over_row_blocks(problem.rows, count, [&](int64_t begin, int64_t end, float* partial) {
    run(problem, begin, end, workspace.of_this_thread(), stream, out_grad, pre_grad, pre, mean, rstd, gradients,
        {partial, gradients.bias ? partial + bias : nullptr, gradients.layerscale ? partial + layerscale : nullptr});
  });
  const auto store = [&](int64_t position, ElementType type, void* gradient) {
    if (gradient) cast(ElementType::kFloat32, sums.data() + position, type, gradient, width);
  };
  store(0, problem.weight_type, gradients.weight);
  store(bias, problem.weight_type, gradients.bias);
  store(layerscale, problem.type, gradients.layerscale);
}

}  // namespace paddle_fused::kernels
