// Products of matrices, summed in fp32 over the whole depth and rounded once to the result's type:
//
//   out[i] = sum over t of A[i, t] B[i, t]        A [rows, depth]    B [depth, columns]    out[i] [rows, columns]
//
// One term (terms == 1) is the ordinary batched product; more terms give the gradient of an operand that was broadcast
// over a batch. The order of every sum is fixed, so results do not depend on the number of threads.
// Where AVX512_BF16 or AMX multiplies bfloat16 by bfloat16, subnormal elements and sums count as zeros.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

class CachedWorkspace;

// Element (r, c) of matrix (i, t) stands at data[offsets[i * terms + t] + r * row_stride + c * column_stride]. It is
// fast if one of the strides is 1.
struct MatmulOperand {
  const void* data;
  int64_t row_stride, column_stride;
  const int64_t* offsets;
};

// Whether the processor has instructions for bfloat16 by bfloat16, which is then faster than one of them in float32.
PF_EXPORT bool multiplies_bfloat16();

// One type for all of them, or one for each.
struct MatmulTypes {
  ElementType a, b, out;

  MatmulTypes(ElementType all) : a(all), b(all), out(all) {}  // NOLINT: the usual case is written as one type
  MatmulTypes(ElementType a, ElementType b, ElementType out) : a(a), b(b), out(out) {}
};

struct MatmulProblem {
  MatmulTypes type;
  int64_t rows, columns, depth;
  int64_t outputs, terms;
};

// `out` holds the results one after another, row by row. No terms, or a depth of zero, give zeros.
PF_EXPORT void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out);

// The same for one result that is part of a larger matrix with rows `row_stride` elements apart; with `accumulate` it
// is added to what stands there.
struct MatmulPart {
  void* data;
  int64_t row_stride;
  bool accumulate;
};
PF_EXPORT void matmul_into(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b,
                           const MatmulPart& out);

// A right operand [depth, columns] that several products share: it is packed once, and not read again. Their bits are
// those of matmul_into.
class PF_EXPORT PackedMatrix {
 public:
  // For left operands of type `a`; the matrix is of type `b`.
  PackedMatrix(ElementType a, ElementType b, int64_t depth, int64_t columns, const MatmulOperand& matrix);
  ~PackedMatrix();
  PackedMatrix(const PackedMatrix&) = delete;

  // out (+)= A times the matrix, for A [rows, depth] and a result of type `type`
  void multiply(int64_t rows, const MatmulOperand& a, ElementType type, const MatmulPart& out) const;

 private:
  MatmulProblem problem(int64_t rows, ElementType out) const;

  const ElementType a_, b_;
  const int64_t depth_, columns_;
  std::unique_ptr<CachedWorkspace> panels_;
};

}  // namespace paddle_fused::kernels
