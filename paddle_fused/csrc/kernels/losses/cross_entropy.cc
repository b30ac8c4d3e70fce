#include "kernels/losses/cross_entropy.h"

#include "kernels/cache.h"
#include "kernels/losses/cross_entropy_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

void cross_entropy_forward(const CrossEntropyProblem& problem, const void* x, void* softmax, void* loss) {
  const auto run = PF_SELECT_TABLE(cross_entropy_table).forward[static_cast<int>(problem.type)];
  const bool stream =
      outgrows_cache(2 * problem.outer * problem.classes * problem.inner * element_size(problem.type));
  ThreadWorkspace<float> rows(cross_entropy_row(problem.classes));
  for_each_range(problem.outer * problem.inner, problem.classes, [&](int64_t begin, int64_t end) {
    float* row = rows.of_this_thread();
    for (int64_t r = begin; r < end; ++r) run(problem, x, r, row, stream, softmax, loss);
  });
}

void cross_entropy_backward(const CrossEntropyProblem& problem, const void* softmax, const void* dloss, void* dx) {
  const auto run = PF_SELECT_TABLE(cross_entropy_table).backward[static_cast<int>(problem.type)];
  for_each_range(problem.outer * problem.inner, problem.classes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) run(problem, softmax, dloss, r, dx);
  });
}

}  // namespace paddle_fused::kernels
