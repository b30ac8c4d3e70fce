#include "kernels/elementwise/cast.h"

#include "kernels/elementwise/cast_table.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

void cast(ElementType from, const void* x, ElementType to, void* y, int64_t count) {
  if (compute_is_disabled()) return;
  const auto run = PF_SELECT_TABLE(cast_table).run[static_cast<int>(from)][static_cast<int>(to)];
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    run(static_cast<const char*>(x) + begin * element_size(from), static_cast<char*>(y) + begin * element_size(to),
        end - begin);
  });
}

}  // namespace paddle_fused::kernels
