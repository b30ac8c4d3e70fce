// Pieces shared by the forward and the backward pass of attention, for simd/*.cc only.
//
// A tile holds one value for each pair of kAttentionTile queries and kAttentionTile keys. Element (i, j) of query i and
// key j stands at tile[i * query_stride + j * key_stride]; one of the strides is 1. Passes that own a block of queries
// keep the queries contiguous, passes that own a block of keys keep the keys contiguous: then the operand that stays
// is the one that is transposed, once, and maxima and sums over keys need no horizontal vector operation.
#pragma once
#include <cstdint>

#include "kernels/attention_table.h"
#include "kernels/simd/load_store.h"
#include "kernels/simd/philox.h"
#include "kernels/simd/tile_matmul.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

constexpr int64_t kTile = kAttentionTile;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

struct TileStrides {
  int64_t query, key;
};
constexpr TileStrides kQueriesContiguous{1, kTile}, kKeysContiguous{kTile, 1};

// Hands out consecutive pieces of a thread's workspace.
struct Arena {
  float* next;
  float* take(int64_t floats) {
    float* piece = next;
    next += (floats + 15) / 16 * 16;
    return piece;
  }
};

// First element of token `token` of one head.
template <typename T>
static inline const T* rows_of(const AttentionInput& x, int64_t batch, int64_t token, int64_t head) {
  return static_cast<const T*>(x.data) + batch * x.batch_stride + token * x.token_stride + head * x.head_stride;
}
template <typename T>
static inline T* rows_of(const AttentionOutput& x, int64_t batch, int64_t token, int64_t head) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + token * x.token_stride + head * x.head_stride;
}

// rows[i][d] = x[i][d]; columns up to padded(head_dim) and rows up to a multiple of kTileRows become zero.
template <typename T>
static inline void load_rows(const T* x, int64_t token_stride, int64_t count, int64_t head_dim, float* rows) {
  const int64_t width = padded(head_dim);
  for (int64_t i = 0; i < count; ++i) {
    const T* from = x + i * token_stride;
    float* to = rows + i * width;
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) to[d] = to_float(from[d]);
    for (int64_t d = head_dim; d < width; ++d) to[d] = 0;
  }
  for (int64_t i = count; i % kTileRows != 0; ++i)
    for (int64_t d = 0; d < width; ++d) rows[i * width + d] = 0;
}

// columns[d][i] = x[i][d], kTile columns; those from `count` on become zero.
template <typename T>
static inline void load_columns(const T* x, int64_t token_stride, int64_t count, int64_t head_dim, float* columns) {
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t i = 0; i < count; ++i) columns[d * kTile + i] = to_float(x[i * token_stride + d]);
    for (int64_t i = count; i < kTile; ++i) columns[d * kTile + i] = 0;
  }
}

// x[i][d] = row_scale[i] * rows[i][d]; the rows are `width` apart.
template <typename T>
static inline void store_rows(const float* rows, int64_t count, int64_t head_dim, int64_t width,
                              const float* row_scale, T* x, int64_t token_stride) {
  for (int64_t i = 0; i < count; ++i) {
    const float* from = rows + i * width;
    T* to = x + i * token_stride;
    const float scale = row_scale[i];
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) from_float(scale * from[d], to + d);
  }
}

static inline void fill(float* x, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) x[i] = value;
}

// The tiles of keys that some query in [begin, begin + queries) sees: those of the prefix, then those of the band.
struct SeenKeys {
  int64_t prefix_end, band_begin, end;

  SeenKeys(const AttentionSegment& s, int64_t begin, int64_t queries)
      : prefix_end(s.band.prefix),
        band_begin(larger(0, begin - s.band.pre) / kTile * kTile),
        end(larger(prefix_end, smaller(s.kv_len, begin + queries + s.band.next))) {}

  int64_t first() const { return prefix_end > 0 ? 0 : band_begin; }
  int64_t after(int64_t key) const {
    const int64_t next = key + kTile;
    return next >= prefix_end && next < band_begin ? band_begin : next;
  }
};

// Multiples of kTile around the queries that see some key in [begin, begin + keys).
struct TileRange {
  int64_t begin, end;
};
static inline TileRange queries_seeing(const AttentionSegment& s, int64_t begin, int64_t keys) {
  if (begin < s.band.prefix) return {0, s.query_len};
  const int64_t first = larger(0, begin - s.band.next);
  return {first / kTile * kTile, smaller(s.query_len, begin + keys + s.band.pre)};
}

// One tile's place: `queries` queries from `query` and `keys` keys from `key` of one segment, seen by one query head.
struct TilePlace {
  const AttentionProblem* problem;
  const AttentionSegment* segment;
  int64_t head, query, queries, key, keys;

  const uint8_t* mask_row(int64_t i) const {
    const AttentionMask& m = problem->mask;
    return m.data + segment->batch * m.batch_stride + head * m.head_stride + (query + i) * m.query_stride + key;
  }
};

enum class MaskState { kNothingHidden, kSomeHidden, kAllHidden };

static inline MaskState mask_state(const TilePlace& t) {
  if (!t.problem->mask.data) return MaskState::kNothingHidden;
  int hidden = 0;
  for (int64_t i = 0; i < t.queries; ++i) {
    const uint8_t* row = t.mask_row(i);
    int in_row = 0;
#pragma omp simd reduction(+ : in_row)
    for (int64_t j = 0; j < t.keys; ++j) in_row += row[j] != 0;
    hidden += in_row;
  }
  if (hidden == 0) return MaskState::kNothingHidden;
  return hidden == t.queries * t.keys ? MaskState::kAllHidden : MaskState::kSomeHidden;
}

// Products of a head that are summed before they are added to the others. Rounding errors grow with the length of such
// a sum, and float32 tensors show them; the sums of 16-bit tensors need no such care.
template <typename T>
constexpr int64_t kSummedProducts = sizeof(T) == 4 ? 16 : int64_t{1} << 20;

// c(m, n) = sum over d of a(m, d) b(d, n), both kTile wide: Q K^T, or dO V^T.
template <typename T>
static inline void matmul_over_head(int64_t rows, int64_t head_dim, const MatrixA& a, const float* b, float* c) {
  for (int64_t d = 0; d < head_dim; d += kSummedProducts<T>)
    tile_matmul(rows, kTile, smaller(kSummedProducts<T>, head_dim - d),
                {a.data + d * a.depth_stride, a.row_stride, a.depth_stride}, b + d * kTile, kTile, c, kTile, d > 0);
}

// sums[i] = sum over d of a(d, i) b(d, i), in the order of matmul_over_head.
template <typename T>
static inline void sums_over_head(int64_t head_dim, const float* a_columns, const float* b_columns, float* sums) {
  for (int64_t i = 0; i < kTile; i += kLanes) {
    Vector total{};
    for (int64_t begin = 0; begin < head_dim; begin += kSummedProducts<T>) {
      Vector sum{};
      for (int64_t d = begin; d < smaller(head_dim, begin + kSummedProducts<T>); ++d)
        sum += load(a_columns + d * kTile + i) * load(b_columns + d * kTile + i);
      total += sum;
    }
    store(sums + i, total);
  }
}

// scores(i, j) = scale * scores(i, j) + bias_scale * bias(i, j), for a tile of `count` scores; none below kHiddenScore
// but for a bias of -inf
template <typename T>
static inline void scale_and_bias(const TilePlace& t, TileStrides strides, int64_t count, float* scores) {
  const Vector scale = broadcast(t.problem->scale);
  const Vector lowest = broadcast(kHiddenScore);
  for (int64_t at = 0; at < count; at += kLanes) {
    const Vector score = load(scores + at) * scale;
    store(scores + at, score < lowest ? lowest : score);  // NaN stays
  }
  const AttentionBias& bias = t.problem->bias;
  if (!bias.data) return;
  const T* tile = static_cast<const T*>(bias.data) + t.segment->batch * bias.batch_stride +
                  t.head * bias.head_stride + t.query * bias.query_stride + t.key;
  for (int64_t i = 0; i < t.queries; ++i) {
    const T* row = tile + i * bias.query_stride;
    for (int64_t j = 0; j < t.keys; ++j) {
      float* score = scores + i * strides.query + j * strides.key;
      const float sum = *score + bias.scale * to_float(row[j]);
      *score = sum < kHiddenScore && sum > -__builtin_inff() ? kHiddenScore : sum;
    }
  }
}

// Writes kHiddenScore over the scores hidden by the mask and minus infinity over those outside of the band.
static inline void hide(const TilePlace& t, MaskState mask, TileStrides strides, float* scores) {
  if (mask != MaskState::kNothingHidden) {
    for (int64_t i = 0; i < t.queries; ++i) {
      const uint8_t* row = t.mask_row(i);
      for (int64_t j = 0; j < t.keys; ++j) {
        float* score = scores + i * strides.query + j * strides.key;
        *score = row[j] ? kHiddenScore : *score;
      }
    }
  }
  const AttentionBand& band = t.segment->band;
  const int64_t prefix = larger(0, smaller(t.keys, band.prefix - t.key));
  const bool in_band = t.query + t.queries - 1 - band.pre <= t.key && t.key + t.keys - 1 <= t.query + band.next;
  if (in_band || prefix == t.keys) return;
  for (int64_t i = 0; i < t.queries; ++i) {
    const int64_t first = larger(0, smaller(t.keys, t.query + i - band.pre - t.key));
    const int64_t end = larger(first, smaller(t.keys, t.query + i + band.next + 1 - t.key));
    float* row = scores + i * strides.query;
    for (int64_t j = prefix; j < first; ++j) row[j * strides.key] = -__builtin_inff();
    for (int64_t j = larger(end, prefix); j < t.keys; ++j) row[j * strides.key] = -__builtin_inff();
  }
}

// factors(i, j) = 1/keep where a random word is below keep * 2^32, else 0. One counter serves four neighbouring keys:
// the offset is its low half, its high half numbers (row, key group), a row being one query token of one head.
static inline void dropout_factors(const TilePlace& t, TileStrides strides, float* factors) {
  const AttentionProblem& p = *t.problem;
  const uint64_t threshold = static_cast<uint64_t>(p.keep_probability * 4294967296.0);
  const float kept = p.keep_probability > 0 ? static_cast<float>(1.0 / p.keep_probability) : 0.0f;
  const uint64_t groups_per_row = (p.kv_len + 3) / 4;
  for (int64_t i = 0; i < t.queries; ++i) {
    const uint64_t row = (t.segment->first_row + t.query + i) * p.query_heads + t.head;
    const uint64_t first_group = row * groups_per_row + t.key / 4;
    float* to = factors + i * strides.query;
#pragma omp simd
    for (int64_t group = 0; group < kTile / 4; ++group) {
      uint32_t words[4];
      philox(p.offset, first_group + group, p.seed, words);
      for (int w = 0; w < 4; ++w) to[(group * 4 + w) * strides.key] = words[w] < threshold ? kept : 0.0f;
    }
  }
}

static inline void multiply(float* x, const float* factors, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(x + i, load(x + i) * load(factors + i));
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
