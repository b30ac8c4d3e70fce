#include "kernels/rotary.h"

#include "kernels/parallel.h"
#include "kernels/rotary_table.h"

namespace paddle_fused::kernels {
namespace {

void rotate(RotaryTable::Run run, ElementType type, const RotaryShape& shape, const void* x, const void* cos,
            const void* sin, void* y) {
  const int64_t angles = shape.head_dim * element_size(type), token = shape.num_heads * angles;
  for_each_range(shape.batch * shape.seq_len, shape.num_heads * shape.head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = t % shape.seq_len;
      run(static_cast<const char*>(x) + t * token, static_cast<const char*>(cos) + position * angles,
          static_cast<const char*>(sin) + position * angles, shape.num_heads, shape.head_dim,
          static_cast<char*>(y) + t * token);
    }
  });
}

}  // namespace

void rotary_forward(ElementType type, const RotaryShape& shape, const void* x, const void* cos, const void* sin,
                    void* y) {
  rotate(PF_SELECT_TABLE(rotary_table).forward[static_cast<int>(type)], type, shape, x, cos, sin, y);
}

void rotary_backward(ElementType type, const RotaryShape& shape, const void* dy, const void* cos, const void* sin,
                     void* dx) {
  rotate(PF_SELECT_TABLE(rotary_table).backward[static_cast<int>(type)], type, shape, dy, cos, sin, dx);
}

}  // namespace paddle_fused::kernels
