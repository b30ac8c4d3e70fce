// Elementwise x + y and x * y with numpy broadcasting, and scale x + bias. Elements are computed in float32 and
// rounded once, so float32 results have the same bits as in any IEEE implementation.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

enum class BinaryOp { kAdd, kMultiply };

// out[i0, i1, ...] = x[i0 sx0 + i1 sx1 + ...] op y[i0 sy0 + ...] with dense out. Strides are in elements, 0 for
// broadcast dimensions. The strides of the last dimension are 0 or 1. `broadcast` merges dimensions, because few are
// faster.
struct Broadcast {
  std::vector<int64_t> sizes, x_strides, y_strides;
};

// The loops over dense x and y that broadcast to `out`, with dimensions merged where possible. Returns false for
// shapes that do not broadcast.
PF_EXPORT bool broadcast(const std::vector<int64_t>& x, const std::vector<int64_t>& y, const std::vector<int64_t>& out,
                         Broadcast* loops);

// `out` may be x or y if the shapes are equal.
PF_EXPORT void binary(BinaryOp op, ElementType type, const Broadcast& loops, const void* x, const void* y, void* out);

// The same for operands of equal shape with `count` elements.
PF_EXPORT void binary(BinaryOp op, ElementType type, int64_t count, const void* x, const void* y, void* out);

// out[i] = scale x[i] + bias; out may be x.
PF_EXPORT void scale(ElementType type, float scale, float bias, int64_t count, const void* x, void* out);

// sums[j] = sum over i of x[i, j] for dense x [rows, width] with at least one row. Sums are accumulated in float32 in
// the order of the rows and rounded once. sums must not overlap x.
PF_EXPORT void sum_rows(ElementType type, int64_t rows, int64_t width, const void* x, void* sums);

// out[i] = terms[0][i] + terms[1][i] + ... with at least one term. Sums are accumulated in float32 in the order of
// the terms and rounded once. `out` may be one of the terms.
PF_EXPORT void sum_terms(ElementType type, int64_t terms, int64_t count, const void* const* x, void* out);

// Copies `bytes` with all threads.
PF_EXPORT void copy(const void* from, int64_t bytes, void* to);

}  // namespace paddle_fused::kernels
