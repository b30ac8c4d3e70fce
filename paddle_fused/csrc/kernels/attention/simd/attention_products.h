// The matrix products of attention in fp32 panels, for */simd only. (bfloat16/attention_products.h replaces them
// where bfloat16 products are available.)
#pragma once
#include <cstdint>

#include "kernels/attention/simd/attention_panels.h"
#include "kernels/shuffle.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// A thread holds one while it calls the functions below. It configures the tile registers, if there are any.
struct ProductUnit {
  ProductUnit() {}
};

// Floats per token in transposed panels.
static inline int64_t transposed_width(int64_t head_dim) { return head_dim; }

// Number of products of a head that are summed separately before they are added to the total. Rounding errors grow
// with the length of these sums, which matters for float32 tensors but not for 16-bit tensors.
constexpr int64_t kShortSum = kHeadWidth < 16 ? kHeadWidth : 16;
template <typename T>
constexpr int64_t kSummedProducts = sizeof(T) == 4 ? kShortSum : int64_t{1} << 20;

// sum (+)= one column of A times one row of B.
template <int kRows, int kVectors>
static inline void add_product(const float* a, const float* b, Vector (*sum)[kVectors], bool begin) {
  Vector columns[kVectors];
  for (int v = 0; v < kVectors; ++v) columns[v] = load(b + v * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Vector factor = broadcast(a[r * kHeadWidth]);
    for (int v = 0; v < kVectors; ++v) sum[r][v] = begin ? factor * columns[v] : sum[r][v] + factor * columns[v];
  }
}

// Not inlined, because the compiler would otherwise spill loop counters of the innermost loop.
template <typename T, int kRows, int kVectors>
__attribute__((noinline)) static void score_rows(int64_t rows, int64_t head_dim, const float* a, int64_t a_panel,
                                                 const float* b, float* c) {
  constexpr bool kShort = kSummedProducts<T> == kShortSum;
  for (int64_t m = 0; m < rows; m += kRows, a += kRows * kHeadWidth, c += kRows * kScoreWidth) {
    const float* b_row = b;
    Vector sum[kRows][kVectors];
    for (int64_t d = 0; d < head_dim; d += kShortSum) {
      const float* a_column = a + d / kHeadWidth * a_panel + d % kHeadWidth;
      const int64_t products = smaller(kShortSum, head_dim - d);
      if (kShort && products == kShortSum) {
        // Unrolled and started with a product instead of zero, because in such a short loop the loop overhead exceeds
        // the additions. The barriers keep the compiler from loading more values ahead than fit in registers.
        add_product<kRows, kVectors>(a_column, b_row, sum, true);
#pragma GCC unroll 16
        for (int k = 1; k < kShortSum; ++k) {
          asm volatile("" ::: "memory");
          add_product<kRows, kVectors>(a_column + k, b_row + k * kScoreWidth, sum, false);
        }
      } else {
        const bool begin = kShort || d == 0;
        if (begin) add_product<kRows, kVectors>(a_column, b_row, sum, true);
        for (int64_t k = begin; k < products; ++k)
          add_product<kRows, kVectors>(a_column + k, b_row + k * kScoreWidth, sum, false);
      }
      b_row += products * kScoreWidth;
      if (!kShort && d + kShortSum < head_dim) continue;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          float* to = c + r * kScoreWidth + v * kLanes;
          store(to, kShort && d > 0 ? load(to) + sum[r][v] : sum[r][v]);
        }
      }
    }
  }
}

// One panel of scores = A B. A is `rows` rows of a head in panels of dimensions, a_panel floats apart. B is one panel
// of the other side's head, [head_dim][kScoreWidth], with `columns` columns in use.
template <typename T>
static inline void score_product(int64_t rows, int64_t columns, int64_t head_dim, const float* a, int64_t a_panel,
                                 const float* b, float* c) {
  switch ((columns + kLanes - 1) / kLanes) {
    case 1: score_rows<T, 2 * kScoreRows, 1>(rows, head_dim, a, a_panel, b, c); break;
    case 2: score_rows<T, kScoreRows, 2>(rows, head_dim, a, a_panel, b, c); break;
    case 3: score_rows<T, kScoreRows, 3>(rows, head_dim, a, a_panel, b, c); break;
  }
}

// c(m, n) (+)= sum over k of a(m, k) b(k, n) for kRows rows and kVectors vectors, k in rising order. a(m, k) is at
// a[m * kRowStride + k / chunk * chunk_stride + k % chunk * kDepthStride]; rows of b and c are kHeadWidth apart.
template <int kRows, int kVectors, int64_t kRowStride, int64_t kDepthStride>
__attribute__((noinline)) static void multiply_panel(const float* a, int64_t chunk, int64_t chunk_stride,
                                                     const float* b, float* c, int64_t depth, bool accumulate) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Vector{};
  for (; depth > 0; depth -= chunk, a += chunk_stride) {
    const float* a_column = a;
    for (int64_t k = smaller(chunk, depth); k > 0; --k) {
      Vector b_row[kVectors];
      for (int v = 0; v < kVectors; ++v) b_row[v] = load(b + v * kLanes);
#if defined(PF_NEON)
      // The multiply-add instruction uses one lane of a register.
      Vector column[kRows / kLanes];
      if (kRowStride == 1)
        for (int r = 0; r < kRows; r += kLanes) column[r / kLanes] = load(a_column + r);
#endif
      for (int r = 0; r < kRows; ++r) {
#if defined(PF_NEON)
        const Vector factor = broadcast(kRowStride == 1 ? column[r / kLanes][r % kLanes] : a_column[r * kRowStride]);
#else
        const Vector factor = broadcast(a_column[r * kRowStride]);
#endif
        for (int v = 0; v < kVectors; ++v) sum[r][v] += factor * b_row[v];
      }
      a_column += kDepthStride;
      b += kHeadWidth;
    }
  }
  // C is added last, so rounding errors grow with the tile length plus the number of tiles, not with their product.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * kHeadWidth + v * kLanes;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
  }
}

// C (+)= A B for `rows` rows of C, rounded up to a multiple of kHeadRows. B and C are in panels of dimensions.
template <int64_t kRowStride, int64_t kDepthStride>
static inline void head_product(int64_t rows, int64_t width, int64_t depth, const float* a, int64_t chunk,
                                int64_t chunk_stride, const float* b, int64_t b_panel, float* c, int64_t c_panel,
                                bool accumulate) {
  for (int64_t n = 0; n < width; n += kHeadWidth, b += b_panel, c += c_panel) {
    for (int64_t m = 0; m < rows; m += kHeadRows) {
      const float* a_rows = a + m * kRowStride;
      float* c_rows = c + m * kHeadWidth;
      if (width - n <= kLanes)
        multiply_panel<kHeadRows, 1, kRowStride, kDepthStride>(a_rows, chunk, chunk_stride, b, c_rows, depth,
                                                               accumulate);
      else
        multiply_panel<kHeadRows, 2, kRowStride, kDepthStride>(a_rows, chunk, chunk_stride, b, c_rows, depth,
                                                               accumulate);
    }
  }
}

// C (+)= S^T B. S is one panel of scores with `depth` rows; its columns are the `rows` rows of C.
static inline void transposed_product(int64_t rows, int64_t head_dim, int64_t depth, const float* scores,
                                      const float* b, int64_t b_panel, float* c, int64_t c_panel, bool accumulate) {
  head_product<1, kScoreWidth>(rows, head_dim, depth, scores, depth, 0, b, b_panel, c, c_panel, accumulate);
}

// C (+)= S B. S is in panels of scores, s_panel floats apart.
static inline void row_product(int64_t rows, int64_t head_dim, int64_t depth, const float* scores, int64_t s_panel,
                               const float* b, int64_t b_panel, float* c, int64_t c_panel, bool accumulate) {
  head_product<kScoreWidth, 1>(rows, head_dim, depth, scores, kScoreWidth, s_panel, b, b_panel, c, c_panel, accumulate);
}

constexpr int64_t kTokensAhead = 8;

// Loads `count` tokens of a head into panels of dimensions, `panel` floats apart. Rows up to a multiple of
// kRowPadding and dimensions up to head_width(head_dim) become zero. All kinds of products use the same copy.
template <HeadFor, typename T>
static inline void load_head(const T* x, int64_t token_stride, int64_t count, int64_t head_dim, float* to,
                             int64_t panel) {
  const int64_t whole = head_dim / kHeadWidth * kHeadWidth;
  for (int64_t i = 0; i < rounded_up(count, kRowPadding); ++i) {
    const T* from = x + i * token_stride;
    float* row = to + i * kHeadWidth;
    if (i + kTokensAhead < count) fetch_ahead(from + kTokensAhead * token_stride, head_dim);
    if (i >= count) {
      for (int64_t n = 0; n < head_dim; n += kHeadWidth, row += panel)
        for (int64_t d = 0; d < kHeadWidth; ++d) row[d] = 0;
      continue;
    }
    for (int64_t n = 0; n < whole; n += kHeadWidth, row += panel)
      for (int64_t d = 0; d < kHeadWidth; d += kLanes) store(row + d, load_elements(from + n + d));
    if (whole == head_dim) continue;
    for (int64_t d = 0; d < kHeadWidth; ++d) row[d] = whole + d < head_dim ? to_float(from[whole + d]) : 0.0f;
  }
}

// Transposes a square with row i in rows[i]. Every step interleaves rows i and i + kLanes / 2 into rows 2 i and 2 i +
// 1.
static inline void transpose(Vector* rows) {
  for (int step = 1; step < kLanes; step *= 2) {
    Vector next[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      const Vector a = rows[i], b = rows[i + kLanes / 2];
#if defined(__AVX512F__)
      next[2 * i] = PF_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = PF_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
      next[2 * i] = PF_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = PF_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
      next[2 * i] = PF_SHUFFLE(a, b, 0, 4, 1, 5);
      next[2 * i + 1] = PF_SHUFFLE(a, b, 2, 6, 3, 7);
#endif
    }
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Loads the same tokens transposed, in panels of scores of head_dim rows. Columns up to a multiple of kLanes become
// zero.
template <typename T>
static inline void load_transposed(const T* x, int64_t token_stride, int64_t count, int64_t head_dim, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    float* column = to + i / kScoreWidth * kScoreWidth * head_dim + i % kScoreWidth;
    const T* from = x + i * token_stride;
    const int64_t tokens = smaller(kLanes, count - i);
    for (int64_t r = kLanes; r < smaller(2 * kLanes, count - i); ++r) fetch_ahead(from + r * token_stride, head_dim);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) {
      Vector rows[kLanes];
      for (int64_t r = 0; r < kLanes; ++r) rows[r] = r < tokens ? load_elements(from + r * token_stride + d) : Vector{};
      transpose(rows);
      for (int64_t r = 0; r < kLanes; ++r) store(column + (d + r) * kScoreWidth, rows[r]);
    }
    for (; d < head_dim; ++d)
      for (int64_t r = 0; r < kLanes; ++r)
        column[d * kScoreWidth + r] = r < tokens ? to_float(from[r * token_stride + d]) : 0.0f;
  }
}

// sums[i] = sum over d of a(d, i) b(d, i) for transposed tokens, in the summation order of score_product.
template <typename T>
static inline void sums_over_head(int64_t count, int64_t head_dim, const float* a, const float* b, float* sums) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t first = i / kScoreWidth * kScoreWidth * head_dim + i % kScoreWidth;
    Vector total{};
    for (int64_t begin = 0; begin < head_dim; begin += kSummedProducts<T>) {
      Vector sum{};
      for (int64_t d = begin; d < smaller(head_dim, begin + kSummedProducts<T>); ++d)
        sum += load(a + first + d * kScoreWidth) * load(b + first + d * kScoreWidth);
      total += sum;
    }
    store(sums + i, total);
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
