// Matrix products, summed in fp32 over the whole depth and rounded once to the result's type:
//
//   out[i] = sum over t of A[i, t] B[i, t]        A [rows, depth]    B [depth, columns]    out[i] [rows, columns]
//
// With one term (terms == 1), this is the ordinary batched product. More terms compute the gradient of an operand
// that was broadcast over a batch. The order of every sum is fixed, so results do not depend on the number of
// threads. Where AVX512_BF16 or AMX multiplies bfloat16 by bfloat16, subnormal elements and sums count as zeros.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

class CachedWorkspace;

// Element (r, c) of matrix (i, t) is at data[offsets[i * terms + t] + r * row_stride + c * column_stride]. Fast if
// one of the strides is 1.
struct MatmulOperand {
  const void* data;
  int64_t row_stride, column_stride;
  const int64_t* offsets;
};

// Whether the processor has bfloat16 by bfloat16 instructions, which are faster than bfloat16 by float32.
PF_EXPORT bool multiplies_bfloat16();

// One type for all, or a type for each.
struct MatmulTypes {
  ElementType a, b, out;

  MatmulTypes(ElementType all) : a(all), b(all), out(all) {}  // NOLINT: implicit, for the usual case of one type
  MatmulTypes(ElementType a, ElementType b, ElementType out) : a(a), b(b), out(out) {}
};

struct MatmulProblem {
  MatmulTypes type;
  int64_t rows, columns, depth;
  int64_t outputs, terms;
};

// `out` has the results in order, each row-major. Without terms, or with depth zero, results are zeros.
PF_EXPORT void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out);

// The same for one result that is part of a larger matrix with rows `row_stride` elements apart. With `accumulate`,
// the result is added to the existing values.
struct MatmulPart {
  void* data;
  int64_t row_stride;
  bool accumulate;
};
PF_EXPORT void matmul_into(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b,
                           const MatmulPart& out);

// A right operand [depth, columns] shared by several products. It is packed once and not read again. Results have the
// same bits as those of matmul_into.
class PF_EXPORT PackedMatrix {
 public:
  // For left operands of type `a`. The matrix has type `b`.
  PackedMatrix(ElementType a, ElementType b, int64_t depth, int64_t columns, const MatmulOperand& matrix);
  ~PackedMatrix();
  PackedMatrix(const PackedMatrix&) = delete;

  // out (+)= A times the matrix, for A [rows, depth] and a result of type `type`.
  void multiply(int64_t rows, const MatmulOperand& a, ElementType type, const MatmulPart& out) const;

 private:
  MatmulProblem problem(int64_t rows, ElementType out) const;

  const ElementType a_, b_;
  const int64_t depth_, columns_;
  std::unique_ptr<CachedWorkspace> panels_;
};

}  // namespace paddle_fused::kernels
