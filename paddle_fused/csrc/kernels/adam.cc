#include "kernels/adam.h"

#include "kernels/adam_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count) {
  const auto run =
      PF_SELECT_TABLE(adam_table).run[static_cast<int>(arrays.param_type)][static_cast<int>(arrays.grad_type)];
  for_each_range(count, 1, [&](int64_t begin, int64_t end) { run(scalars, arrays, begin, end); });
}

}  // namespace paddle_fused::kernels
