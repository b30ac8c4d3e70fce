// x + y and x * y, element by element, with either broadcast as numpy does; and scale x + bias. Every element is computed
// in float32 and rounded once: in float32 the bits are those of any other IEEE implementation.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

enum class BinaryOp { kAdd, kMultiply };

// out[i0, i1, ...] = x[i0 sx0 + i1 sx1 + ...] op y[i0 sy0 + ...], out dense. Strides are in elements; 0 where an operand
// is broadcast. The last dimension's strides are 0 or 1. Few dimensions are fast: `broadcast` makes them.
struct Broadcast {
  std::vector<int64_t> sizes, x_strides, y_strides;
};

// The loops over dense x and y that broadcast to `out`: dimensions that both operands walk alike are one. False if the
// shapes do not fit.
PF_EXPORT bool broadcast(const std::vector<int64_t>& x, const std::vector<int64_t>& y, const std::vector<int64_t>& out,
                         Broadcast* loops);

// `out` may be x or y, where that has out's shape.
PF_EXPORT void binary(BinaryOp op, ElementType type, const Broadcast& loops, const void* x, const void* y, void* out);

// The same for operands of one shape, `count` elements.
PF_EXPORT void binary(BinaryOp op, ElementType type, int64_t count, const void* x, const void* y, void* out);

// out[i] = scale x[i] + bias; out may be x.
PF_EXPORT void scale(ElementType type, float scale, float bias, int64_t count, const void* x, void* out);

// sums[j] = sum over i of x[i, j], x dense [rows, width] with at least one row: in float32 and in the order of the rows,
// as a plain loop adds them, rounded once. sums may not be part of x.
PF_EXPORT void sum_rows(ElementType type, int64_t rows, int64_t width, const void* x, void* sums);

// out[i] = terms[0][i] + terms[1][i] + ... of at least one term: in float32 and in the order of the terms, rounded once.
// `out` may be one of the terms.
PF_EXPORT void sum_terms(ElementType type, int64_t terms, int64_t count, const void* const* x, void* out);

// Copies `bytes`, on all threads.
PF_EXPORT void copy(const void* from, int64_t bytes, void* to);

}  // namespace paddle_fused::kernels
