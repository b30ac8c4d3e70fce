// Products of matrices of 16 bits, summed in fp32 over the whole depth and rounded once:
//
//   out[i] = sum over t of A[i, t] B[i, t]        A [rows, depth]    B [depth, columns]    out[i] [rows, columns]
//
// One term (terms == 1) is the ordinary batched product; more terms give the gradient of an operand that was broadcast
// over a batch. The order of every sum is fixed, so results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Element (r, c) of matrix (i, t) stands at data[offsets[i * terms + t] + r * row_stride + c * column_stride]. It is
// fast if one of the strides is 1.
struct MatmulOperand {
  const void* data;
  int64_t row_stride, column_stride;
  const int64_t* offsets;
};

struct MatmulProblem {
  ElementType type;  // of A, B and out
  int64_t rows, columns, depth;
  int64_t outputs, terms;
};

// `out` holds the results one after another, row by row. No terms, or a depth of zero, give zeros.
PF_EXPORT void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out);

}  // namespace paddle_fused::kernels
