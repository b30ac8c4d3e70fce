#include "kernels/dropout_add_norm.h"

#include <vector>

#include "kernels/cast.h"
#include "kernels/dropout_add_norm_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

// weight, bias and layerscale in float32 for the time of a call.
class Vectors {
 public:
  explicit Vectors(const DropoutAddNorm& p)
      : weight_(floats(p.weight, p.weight_type, p.width)),
        bias_(floats(p.bias, p.weight_type, p.width)),
        layerscale_(floats(p.layerscale, p.type, p.width)) {}

  NormVectors view() const {
    return {weight_.data(), bias_.empty() ? nullptr : bias_.data(), layerscale_.empty() ? nullptr : layerscale_.data()};
  }

 private:
  static std::vector<float> floats(const void* x, ElementType type, int64_t count) {
    if (!x) return {};
    std::vector<float> y(count);
    cast(type, x, ElementType::kFloat32, y.data(), count);
    return y;
  }

  std::vector<float> weight_, bias_, layerscale_;
};

}  // namespace

void dropout_add_norm_forward(const DropoutAddNorm& problem, void* out, void* pre, uint8_t* mask, float* mean,
                              float* rstd) {
  const auto run = PF_SELECT_TABLE(dropout_add_norm_table).forward;
  const Vectors vectors(problem);
  ThreadWorkspace<float> workspace(kDropoutAddNormRows * dropout_add_norm_row(problem.width));
  for_each_range(problem.rows, problem.width, [&](int64_t begin, int64_t end) {
    run(problem, vectors.view(), begin, end, workspace.of_this_thread(), out, pre, mask, mean, rstd);
  });
}

void dropout_add_norm_backward(const DropoutAddNorm& problem, const void* out_grad, const void* pre_grad,
                               const void* pre, const float* mean, const float* rstd,
                               const DropoutAddNormGradients& gradients) {
  const auto run = PF_SELECT_TABLE(dropout_add_norm_table).backward;
  const Vectors vectors(problem);
  const int64_t width = problem.width;
  ThreadWorkspace<float> workspace(kDropoutAddNormRows * dropout_add_norm_row(width));
  const auto sums = sum_over_row_blocks(problem.rows, 3 * width, [&](int64_t begin, int64_t end, float* partial) {
    run(problem, vectors.view(), begin, end, workspace.of_this_thread(), out_grad, pre_grad, pre, mean, rstd, gradients,
        {partial, partial + width, partial + 2 * width});
  });
  const auto store = [&](int64_t position, ElementType type, void* gradient) {
    if (gradient) cast(ElementType::kFloat32, sums.data() + position * width, type, gradient, width);
  };
  store(0, problem.weight_type, gradients.weight);
  store(1, problem.weight_type, gradients.bias);
  store(2, problem.type, gradients.layerscale);
}

}  // namespace paddle_fused::kernels
