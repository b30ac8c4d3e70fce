// The matrix products of attention in bfloat16 tiles, for simd/attention_*.cc compiled for bfloat16 products. They
// replace the products and panels of simd/attention_products.h. Q, K, V and dO are multiplied directly. P and dS are
// rounded to bfloat16 when they enter a product. Scores and sums are fp32.
//
// Tokens of a head: 32 tokens by 32 dimensions use as much of a panel as floats would, enough for two copies. The
// first copy has two tiles of A with 16 tokens each, for products that sum over dimensions. The second has two tiles
// of B with 16 dimensions each, for products that sum over tokens. Transposed tokens are tiles of B only, in steps of
// 32 dimensions.
#pragma once
#include <cstdint>

#include "kernels/attention/simd/attention_panels.h"
#include "kernels/bfloat16/tile_product.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

constexpr int kPanelTiles = 2;
static_assert(kScoreWidth == kPanelTiles * kTileRows && kHeadWidth == kScoreWidth && kRowPadding == kTileDepth,
              "panels are as wide as a product of tiles, and as a step in depth");

// A thread holds one while it calls the functions below.
struct ProductUnit {
  ProductUnit() { enter_products(); }
  ~ProductUnit() { leave_products(); }
};

// Floats per token in transposed panels.
static inline int64_t transposed_width(int64_t head_dim) { return rounded_up(head_dim, kTileDepth) / 2; }

static inline const BFloat16* tiles_in(const float* panel) { return reinterpret_cast<const BFloat16*>(panel); }

// One panel of scores = A B. A is `rows` rows of a head in panels of dimensions, a_panel floats apart. B is one panel
// of the other side's transposed tokens.
template <typename T>
static inline void score_product(int64_t rows, int64_t /*columns*/, int64_t head_dim, const float* a, int64_t a_panel,
                                 const float* b, float* c) {
  for (int64_t m = 0; m < rows; m += kProductRows)
    multiply_tiles<kPanelTiles, TileOf::kA>(rows - m, {tiles_in(a + m * kHeadWidth), 2 * a_panel}, {tiles_in(b)},
                                            steps_of(head_dim), c + m * kScoreWidth, false);
}

// Scores packed into tiles of A at a time: one panel's width by this depth.
constexpr int64_t kDepthTogether = 192;
typedef BFloat16 ScoreTiles[kProductRows * kDepthTogether];

// C (+)= A B for at most 32 rows. B's tokens and C are in panels of dimensions.
template <TileOf kPacked>
static inline void head_product(int64_t rows, int64_t head_dim, int64_t depth, const ScoreTiles& a, const float* b,
                                int64_t b_panel, float* c, int64_t c_panel, bool accumulate) {
  constexpr int64_t kBlock = 2 * kStepElements;  // tiles of A, tiles of B
  for (int64_t n = 0; n < head_dim; n += kHeadWidth, b += b_panel, c += c_panel)
    multiply_tiles<kPanelTiles, kPacked>(rows, {a}, {tiles_in(b) + kStepElements, kBlock}, steps_of(depth), c,
                                         accumulate);
}

// Packs the columns of one panel of scores as the `rows` rows of A, in tiles of kind kColumnsPacked. The rows of
// scores are the depth.
static inline void pack_columns(const float* scores, int64_t rows, int64_t depth, BFloat16* tiles) {
  for (int64_t first = 0; first < depth; first += kTileDepth, tiles += kStepElements) {
    for (int64_t column = 0; column < rows; column += kTileRows) {
      const auto row = [&](int64_t k) { return k < depth ? load(scores + k * kScoreWidth + column) : Vector{}; };
      __m512i pairs[kTileRows];
      for (int64_t p = 0; p < kTileRows; ++p) pairs[p] = rounded_pairs(row(first + 2 * p), row(first + 2 * p + 1));
      if (kColumnsPacked == TileOf::kA) transpose(pairs);
      for (int64_t i = 0; i < kTileRows; ++i)
        _mm512_store_si512(tiles + (column + i) * kTileDepth, pairs[i]);
    }
  }
}

// Packs rows of scores in panels, `panel` floats apart, as rows of A.
static inline void pack_rows(const float* scores, int64_t panel, int64_t rows, int64_t depth, BFloat16* tiles) {
  for (; depth > 0; depth -= kScoreWidth, scores += panel, tiles += kStepElements) {
    for (int64_t column = 0; column < kScoreWidth; column += kLanes) {
      const auto inside = static_cast<__mmask16>(first_of_32(larger(0, depth - column)));
      for (int64_t i = 0; i < rows; ++i) {
        const __m512 row = _mm512_maskz_loadu_ps(inside, scores + i * kScoreWidth + column);
        store_rounded(tiles + i * kTileDepth + column, reinterpret_cast<Vector>(row));
      }
    }
  }
}

// C (+)= S^T B. S is one panel of scores with `depth` rows; its columns are the `rows` rows of C.
static inline void transposed_product(int64_t rows, int64_t head_dim, int64_t depth, const float* scores,
                                      const float* b, int64_t b_panel, float* c, int64_t c_panel, bool accumulate) {
  alignas(64) ScoreTiles a;
  for (int64_t k = 0; k < depth; k += kDepthTogether) {
    const int64_t together = smaller(kDepthTogether, depth - k);
    pack_columns(scores + k * kScoreWidth, rows, together, a);
    head_product<kColumnsPacked>(rows, head_dim, together, a, b + k * kHeadWidth, b_panel, c, c_panel,
                                 accumulate || k > 0);
  }
}

// C (+)= S B. S is in panels of scores, s_panel floats apart.
static inline void row_product(int64_t rows, int64_t head_dim, int64_t depth, const float* scores, int64_t s_panel,
                               const float* b, int64_t b_panel, float* c, int64_t c_panel, bool accumulate) {
  alignas(64) ScoreTiles a;
  for (int64_t m = 0; m < rows; m += kProductRows) {
    const int64_t count = smaller(kProductRows, rows - m);
    for (int64_t k = 0; k < depth; k += kDepthTogether) {
      const int64_t together = smaller(kDepthTogether, depth - k);
      pack_rows(scores + k / kScoreWidth * s_panel + m * kScoreWidth, s_panel, count, together, a);
      head_product<TileOf::kA>(count, head_dim, together, a, b + k * kHeadWidth, b_panel, c + m * kHeadWidth, c_panel,
                   accumulate || k > 0);
    }
  }
}

// The number of lines in the tile that begins at line `first` of `count`.
static inline int64_t lines_of_tile(int64_t first, int64_t count) {
  return smaller(kTileRows, larger(0, count - first));
}

// Prefetches the tokens after the current ones.
static inline void fetch_next(const BFloat16* x, int64_t token_stride, int64_t first, int64_t count, int64_t head_dim) {
  for (int64_t i = first + kTileDepth; i < smaller(first + 2 * kTileDepth, count); ++i)
    fetch_ahead(x + i * token_stride, head_dim);
}

// Loads `count` tokens of a head into panels of dimensions, `panel` floats apart. Rows up to a multiple of
// kRowPadding and dimensions up to head_width(head_dim) become zero.
template <HeadFor kUse>
static inline void load_head(const BFloat16* x, int64_t token_stride, int64_t count, int64_t head_dim, float* to,
                             int64_t panel) {
  for (int64_t i = 0; i < count; i += kTileDepth) {
    fetch_next(x, token_stride, i, count, head_dim);
    for (int64_t n = 0; n < head_dim; n += kHeadWidth) {
      const BFloat16* from = x + i * token_stride + n;
      auto* tiles = reinterpret_cast<BFloat16*>(to + n / kHeadWidth * panel + i * kHeadWidth);
      const int64_t tokens = smaller(kTileDepth, count - i), dims = smaller(kTileDepth, head_dim - n);
      for (int64_t first = 0; first < kTileDepth; first += kTileRows, tiles += kTileElements) {
        if (kUse != HeadFor::kSums)
          pack_tile<TileOf::kA>({from + first * token_stride, token_stride, 1, lines_of_tile(first, tokens)}, dims,
                                tiles);
        if (kUse != HeadFor::kScores)
          pack_tile<TileOf::kB>({from + first, 1, token_stride, lines_of_tile(first, dims)}, tokens,
                                tiles + kStepElements);
      }
    }
  }
}

// Loads the same tokens transposed, in panels of scores of steps_of(head_dim) steps. Columns up to a multiple of 32
// become zero.
static inline void load_transposed(const BFloat16* x, int64_t token_stride, int64_t count, int64_t head_dim,
                                   float* to) {
  auto* tiles = reinterpret_cast<BFloat16*>(to);
  for (int64_t i = 0; i < count; i += kScoreWidth) {
    fetch_next(x, token_stride, i, count, head_dim);
    for (int64_t d = 0; d < head_dim; d += kTileDepth)
      for (int64_t first = i; first < i + kScoreWidth; first += kTileRows, tiles += kTileElements)
        pack_tile<TileOf::kB>({x + first * token_stride + d, token_stride, 1, lines_of_tile(first, count)},
                              smaller(kTileDepth, head_dim - d), tiles);
  }
}

// sums[i] = sum over d of a(d, i) b(d, i) for transposed tokens, in the summation order of score_product: the
// diagonals of products.
template <typename T>
static inline void sums_over_head(int64_t count, int64_t head_dim, const float* a, const float* b, float* sums) {
  for (int64_t i = 0; i < count; i += kTileRows) {
    const int64_t first = i / kScoreWidth * kScoreWidth * transposed_width(head_dim);
    const BFloat16* columns = tiles_in(a + first) + i % kScoreWidth * kTileDepth;
    TileSteps other{tiles_in(b + first)};
    alignas(64) float products[kTileRows * kScoreWidth];
    for (int64_t step = 0; step < steps_of(head_dim); ++step, columns += kStepElements, other.tiles += kStepElements) {
      alignas(64) BFloat16 tile[kTileElements];
      __m512i pairs[kTileRows];
      for (int64_t p = 0; p < kTileRows; ++p) pairs[p] = _mm512_load_si512(columns + p * kTileDepth);
      if (kColumnsPacked == TileOf::kA) transpose(pairs);
      for (int64_t p = 0; p < kTileRows; ++p) _mm512_store_si512(tile + p * kTileDepth, pairs[p]);
      multiply_tiles<kPanelTiles, kColumnsPacked>(kTileRows, {tile}, other, 1, products, step > 0);
    }
    for (int64_t j = 0; j < kTileRows; ++j) sums[i + j] = products[j * kScoreWidth + i % kScoreWidth + j];
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
