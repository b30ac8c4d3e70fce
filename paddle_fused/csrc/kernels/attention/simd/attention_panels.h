// The memory layout of attention's operands and results, for */simd only.
//
// A matrix of r rows in panels of w columns stores element (i, j) at [j / w][i][j % w]. There are two widths: panels
// of scores (kScoreWidth) and panels of a head's dimensions (kHeadWidth). A panel is as wide as a register tile and
// is dense in the L1 cache for any strides of the tensors.
#pragma once
#include <cstdint>

#include "kernels/simd/element_vectors.h"
#include "kernels/simd/tile_matmul.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// kScoreRows and kHeadRows: rows of a register tile of width kScoreWidth or kHeadWidth.
#if defined(PF_BFLOAT16_PRODUCTS)
constexpr int kScoreVectors = 2, kHeadVectors = 2, kScoreRows = 16, kHeadRows = 32;
#elif defined(PF_NEON)
constexpr int kScoreVectors = 3, kHeadVectors = 2, kScoreRows = 4, kHeadRows = 12;
#elif defined(__AVX512F__)
constexpr int kScoreVectors = 3, kHeadVectors = 2, kScoreRows = 8, kHeadRows = 12;
#else
constexpr int kScoreVectors = 3, kHeadVectors = 2, kScoreRows = 4, kHeadRows = 6;
#endif
constexpr int64_t kScoreWidth = kScoreVectors * kLanes, kHeadWidth = kHeadVectors * kLanes;
static_assert(kScoreWidth % kHeadRows == 0, "columns of scores become rows of a head");
// Products that compute scores process rows up to a multiple of this.
constexpr int64_t kRowPadding = 2 * kScoreRows;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }
static inline int64_t head_width(int64_t head_dim) { return rounded_up(head_dim, kHeadWidth); }

// The products that need a head's tokens: scores, sums over the tokens, or both.
enum class HeadFor { kScores, kSums, kBoth };

// Tokens of a head are often a page or more apart, where the hardware does not prefetch.
template <typename T>
static inline void fetch_ahead(const T* token, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(token + d);
}

// x[i][d] = row_scale[i] * (element (i, d) of a matrix in panels of dimensions).
template <typename T>
static inline void store_head(const float* from, int64_t panel, int64_t count, int64_t head_dim, const float* row_scale,
                              T* x, int64_t token_stride) {
  for (int64_t i = 0; i < count; ++i) {
    const float* row = from + i * kHeadWidth;
    T* to = x + i * token_stride;
    const float scale = row_scale[i];
    for (int64_t n = 0; n < head_dim; n += kHeadWidth, row += panel) {
      if (n + kHeadWidth <= head_dim) {
        for (int64_t d = 0; d < kHeadWidth; d += kLanes) store_elements(to + n + d, load(row + d) * scale);
      } else {
        for (int64_t d = 0; d < head_dim - n; ++d) from_float(scale * row[d], to + n + d);
      }
    }
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
