// Shared by the forward and the backward pass of attention, for */simd only.
//
// Scores are computed panel by panel (see attention_panels.h). Element (i, j) of query i and key j is at
// scores[i * query_stride + j * key_stride]; one of the strides is 1. Passes that own a block of queries keep queries
// contiguous; passes that own a block of keys keep keys contiguous. The operand that is kept is then transposed once,
// and maxima and sums over keys need no horizontal vector operations.
#pragma once
#include <cstdint>

#include "kernels/attention/attention_table.h"
#include "kernels/simd/philox.h"
#if defined(PF_BFLOAT16_PRODUCTS)
#include "kernels/bfloat16/attention_products.h"
#else
#include "kernels/attention/simd/attention_products.h"
#endif

// A table's functions by element type. Tables compiled for bfloat16 products support only bfloat16.
#if defined(PF_BFLOAT16_PRODUCTS)
#define PF_EACH_TYPE(function) {nullptr, function<BFloat16>, nullptr}
#else
#define PF_EACH_TYPE(function) {function<float>, function<BFloat16>, function<Float16>}
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(PF_NEON)
#include <arm_neon.h>
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {

struct ScoreStrides {
  int64_t query, key;
};
constexpr ScoreStrides kQueriesContiguous{1, kScoreWidth}, kKeysContiguous{kScoreWidth, 1};

// Hands out consecutive parts of a thread's workspace.
struct Arena {
  float* next;
  float* take(int64_t floats) {
    float* piece = next;
    next += rounded_up(floats, 16);
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

static inline void fill(float* x, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) x[i] = value;
}

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// The range in [begin, end) from the first to the last key that queries [query, query + queries) may attend to.
static inline Range keys_seen(const AttentionSegment& s, int64_t query, int64_t queries, int64_t begin, int64_t end) {
  const Range band{larger(begin, query - s.band.pre), smaller(end, query + queries + s.band.next)};
  if (begin >= s.band.prefix) return band;
  const int64_t prefix = smaller(end, s.band.prefix);
  return {begin, band.empty() ? prefix : larger(prefix, band.end)};
}

// The range in [begin, end) from the first to the last query that may attend to keys [key, key + keys).
static inline Range queries_seeing(const AttentionSegment& s, int64_t key, int64_t keys, int64_t begin, int64_t end) {
  if (key < s.band.prefix) return {begin, end};
  return {larger(begin, key - s.band.next), smaller(end, key + keys + s.band.pre)};
}

// `queries` queries from `query` and `keys` keys from `key` of one segment, for one query head.
struct TilePlace {
  const AttentionProblem* problem;
  const AttentionSegment* segment;
  int64_t head, query, queries, key, keys;

  const uint8_t* mask_row(int64_t i) const {
    const AttentionMask& m = problem->mask;
    return m.data + segment->batch * m.batch_stride + head * m.head_stride + (query + i) * m.query_stride + key;
  }
  // Whether the band includes all pairs of query and key.
  bool inside_band() const {
    const AttentionBand& band = segment->band;
    return key + keys <= band.prefix ||
           (query + queries - 1 - band.pre <= key && key + keys - 1 <= query + band.next);
  }
};

// max(x, bound), propagating NaN: one instruction, which compilers do not use if the bound is a constant.
static inline Vector at_least(Vector x, Vector bound) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, bound, x);
#elif defined(__AVX2__)
  return _mm256_max_ps(bound, x);
#elif defined(PF_NEON)
  return vmaxq_f32(bound, x);
#else
  return x < bound ? bound : x;
#endif
}

// e^x with a relative error of about 2^-23, like exp_fast (math.h) but only for x <= 88, with fewer instructions:
// scores of attention never exceed their maximum. n ln2 is subtracted in one step, which is inexact only far from
// zero, where the results are small. The polynomial has the smallest relative error of its degree and yields 2 e^r.
// 2^(n - 1) is zero for n = -126, so results below 1.8e-38 are zero and never subnormal. NaN passes through.
static inline Vector exp_below_overflow(Vector x) {
  const Vector clamped = at_least(x, broadcast(-87.2f));
  constexpr float kRound = 12582912.0f + 126.0f;  // 1.5 * 2^23 rounds to an integer n, 126 yields the bits of 2^(n-1)
  const Vector shifted = clamped * 1.44269504f + kRound;
  const Vector n = shifted - kRound;
  const Vector r = clamped - n * 0.693147181f;
  Vector e = broadcast(2 * 1.3814220723e-3f);
  e = e * r + 2 * 8.3688987812e-3f;
  e = e * r + 2 * 4.1668405746e-2f;
  e = e * r + 2 * 1.6666519129e-1f;
  e = e * r + 2 * 4.9999993346e-1f;
  e = e * r + 2.0f;
  e = e * r + 2.0f;
  return e * reinterpret_cast<Vector>(reinterpret_cast<IntVector>(shifted) << 23);
}

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

// scores(i, j) = scale * scores(i, j) + bias_scale * bias(i, j) for `count` scores in memory, at least kHiddenScore
// except for a bias of -inf.
template <typename T>
static inline void scale_and_bias(const TilePlace& t, ScoreStrides strides, int64_t count, float* scores) {
  const Vector scale = broadcast(t.problem->scale);
  const Vector lowest = broadcast(kHiddenScore);
  for (int64_t at = 0; at < count; at += kLanes) {
    store(scores + at, at_least(load(scores + at) * scale, lowest));
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

// Sets scores masked by the mask to kHiddenScore and scores outside the band to minus infinity.
static inline void hide(const TilePlace& t, MaskState mask, ScoreStrides strides, float* scores) {
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
  if (t.inside_band()) return;
  for (int64_t i = 0; i < t.queries; ++i) {
    const int64_t first = larger(0, smaller(t.keys, t.query + i - band.pre - t.key));
    const int64_t end = larger(first, smaller(t.keys, t.query + i + band.next + 1 - t.key));
    float* row = scores + i * strides.query;
    for (int64_t j = prefix; j < first; ++j) row[j * strides.key] = -__builtin_inff();
    for (int64_t j = larger(end, prefix); j < t.keys; ++j) row[j * strides.key] = -__builtin_inff();
  }
}

// factors(i, j) = 1/keep where a random word is below keep * 2^32, else 0. One counter serves four adjacent keys. Its
// low half is the offset, its high half the number of (row, key group), where a row is one query token of one head.
static inline void dropout_factors(const TilePlace& t, ScoreStrides strides, float* factors) {
  const AttentionProblem& p = *t.problem;
  const uint64_t threshold = static_cast<uint64_t>(p.keep_probability * 4294967296.0);
  const float kept = p.keep_probability > 0 ? static_cast<float>(1.0 / p.keep_probability) : 0.0f;
  const uint64_t groups_per_row = (p.kv_len + 3) / 4;
  for (int64_t i = 0; i < t.queries; ++i) {
    const uint64_t row = (t.segment->first_row + t.query + i) * p.query_heads + t.head;
    const uint64_t first_group = row * groups_per_row + t.key / 4;
    float* to = factors + i * strides.query;
#pragma omp simd
    for (int64_t group = 0; group < (t.keys + 3) / 4; ++group) {
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
