// One product per group of rows, as experts have it:
//   out[r] = x[r] W[g]    for the rows r of group g;   dx[r] = dout[r] W[g]^T;   dW[g] = x_g^T dout_g, zero if g is empty
// x: [rows, depth]; out: [rows, columns]; W[g] and dW[g]: [depth, columns], one pointer for each group; all of `type`.
// The rows of group g stand in front of first[g + 1] and follow those of group g - 1; first has groups + 1 entries and
// ends with `rows`.
// Sums in float32, rounded once; the same bits for any number of threads.
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
