// One matmul per group of rows, such as the tokens of an expert:
//   out[r] = x[r] W[g]    for the rows r of group g;   dx[r] = dout[r] W[g]^T;   dW[g] = x_g^T dout_g, zero if g is
// empty
// x: [rows, depth]; out: [rows, columns]; W[g] and dW[g]: [depth, columns], one pointer per group; all have `type`.
// Group g has rows first[g] to first[g + 1] - 1. first has groups + 1 entries and ends with `rows`.
// Sums are accumulated in float32 and rounded once; results are bit-identical for any number of threads.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct GroupedMatmulShape {
  int64_t groups, rows, depth, columns;
};

PF_EXPORT void grouped_matmul(ElementType type, const GroupedMatmulShape& shape, const int64_t* first, const void* x,
                              const void* const* weight, void* out);
PF_EXPORT void grouped_matmul_dx(ElementType type, const GroupedMatmulShape& shape, const int64_t* first,
                                 const void* dout, const void* const* weight, void* dx);
PF_EXPORT void grouped_matmul_dweight(ElementType type, const GroupedMatmulShape& shape, const int64_t* first,
                                      const void* x, const void* dout, void* const* dweight);

}  // namespace paddle_fused::kernels
