#include "kernels/matmul/grouped_matmul.h"

#include "kernels/matmul/matmul.h"

namespace paddle_fused::kernels {
namespace {

constexpr int64_t kNoOffset = 0;

const void* element(const void* base, ElementType type, int64_t index) {
  return static_cast<const char*>(base) + index * element_size(type);
}
void* element(void* base, ElementType type, int64_t index) {
  return static_cast<char*>(base) + index * element_size(type);
}

// A dense row-major operand with `columns` columns.
MatmulOperand dense(const void* data, int64_t columns) { return {data, columns, 1, &kNoOffset}; }
MatmulOperand transposed(const void* data, int64_t columns) { return {data, 1, columns, &kNoOffset}; }

}  // namespace

void grouped_matmul(ElementType type, const GroupedMatmulShape& shape, const int64_t* first, const void* x,
                    const void* const* weight, void* out) {
  for (int64_t g = 0; g < shape.groups; ++g)
    matmul({type, first[g + 1] - first[g], shape.columns, shape.depth, 1, 1},
           dense(element(x, type, first[g] * shape.depth), shape.depth),
           dense(weight[g], shape.columns),
           element(out, type, first[g] * shape.columns));
}

void grouped_matmul_dx(ElementType type, const GroupedMatmulShape& shape, const int64_t* first, const void* dout,
                       const void* const* weight, void* dx) {
  for (int64_t g = 0; g < shape.groups; ++g)
    matmul({type, first[g + 1] - first[g], shape.depth, shape.columns, 1, 1},
           dense(element(dout, type, first[g] * shape.columns), shape.columns),
           transposed(weight[g], shape.columns),
           element(dx, type, first[g] * shape.depth));
}

void grouped_matmul_dweight(ElementType type, const GroupedMatmulShape& shape, const int64_t* first, const void* x,
                            const void* dout, void* const* dweight) {
  for (int64_t g = 0; g < shape.groups; ++g)
    matmul({type, shape.depth, shape.columns, first[g + 1] - first[g], 1, 1},
           transposed(element(x, type, first[g] * shape.depth), shape.depth),
           dense(element(dout, type, first[g] * shape.columns), shape.columns),
           dweight[g]);
}

}  // namespace paddle_fused::kernels
