// P and dS of one tile of queries and keys, for attention's backward passes in simd/*.cc only.
#pragma once
#include "kernels/attention/simd/attention_tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// A block of keys is kept while tiles of queries are processed. Both fit in the L2 cache together.
#if defined(PF_BFLOAT16_PRODUCTS)
// Products are faster here, so reading and writing the query gradients for every block of keys costs relatively more.
constexpr int64_t kKeyBlock = 192, kQueryTile = 96;
#else
constexpr int64_t kKeyBlock = 96, kQueryTile = 48;
#endif
static_assert(kKeyBlock % kScoreWidth == 0 && kQueryTile % kRowPadding == 0 && kQueryTile % kHeadRows == 0,
              "tiles are whole panels");
constexpr int64_t kScorePanel = kQueryTile * kScoreWidth, kScorePanels = kKeyBlock / kScoreWidth;
// Panels are slightly longer than their rows, so rows of several panels do not map to the same cache sets.
constexpr int64_t kQueryPanel = (kQueryTile + 4) * kHeadWidth, kKeyPanel = (kKeyBlock + 4) * kHeadWidth;

static inline int64_t panels_of(int64_t head_dim) { return head_width(head_dim) / kHeadWidth; }

// Statistics of every query in a tile for the backward pass.
struct RowStatistics {
  float* max;
  float* weight;        // 1 / sum
  float* score_weight;  // weight * scale of dS, but 0 for fully masked queries, whose scores are constants
  float* delta;         // rowsum(dO * O)

  explicit RowStatistics(Arena* arena)
      : max(arena->take(kQueryTile)),
        weight(arena->take(kQueryTile)),
        score_weight(arena->take(kQueryTile)),
        delta(arena->take(kQueryTile)) {}
  static int64_t floats() { return 4 * kQueryTile; }

  void read(const TilePlace& t, const SoftmaxStatistics& from, const float* deltas, float scale) {
    const AttentionSegment& s = *t.segment;
    const int64_t first = s.batch * from.batch_stride + (s.query_start + t.query) * from.token_stride +
                          t.head * from.head_stride;
    for (int64_t i = 0; i < t.queries; ++i) {
      const float sum = from.sum[first + i * from.token_stride];
      max[i] = from.max[first + i * from.token_stride];
      weight[i] = sum == 0 ? 0.0f : 1.0f / sum;
      score_weight[i] = max[i] <= kHiddenScore ? 0.0f : weight[i] * scale;
      delta[i] = deltas[i];
    }
  }

  bool hidden_keys_count(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i)
      if (max[i] <= kHiddenScore) return true;
    return false;
  }
};

// P and dS for consecutive tiles with the same keys: load_keys once, load_queries for each tile of queries, then
// recompute for each panel of keys.
template <typename T>
struct GradientTile {
  const AttentionProblem& p;
  const AttentionBackward& x;
  float *key_columns, *value_columns;  // transposed, in panels of scores
  float *queries, *out_grads;          // in panels of dimensions
  float *scores, *score_grads;         // P * R and dS, in panels of scores with one row per query
  float* factors;
  RowStatistics rows;

  GradientTile(const AttentionProblem& problem, const AttentionBackward& tensors, Arena* arena)
      : p(problem),
        x(tensors),
        key_columns(arena->take(transposed_width(p.head_dim) * kKeyBlock)),
        value_columns(arena->take(transposed_width(p.value_head_dim) * kKeyBlock)),
        queries(arena->take(panels_of(p.head_dim) * kQueryPanel)),
        out_grads(arena->take(panels_of(p.value_head_dim) * kQueryPanel)),
        scores(arena->take(kScorePanel)),
        score_grads(arena->take(kScorePanels * kScorePanel)),
        factors(arena->take(kScorePanel)),
        rows(arena) {}
  static int64_t floats(const AttentionProblem& p) {
    return kKeyBlock * (transposed_width(p.head_dim) + transposed_width(p.value_head_dim)) +
           kQueryPanel * (panels_of(p.head_dim) + panels_of(p.value_head_dim)) + kScorePanel * (kScorePanels + 2) +
           RowStatistics::floats() + 11 * 16;
  }

  void load_keys(const AttentionSegment& s, int64_t kv_head, int64_t key, int64_t keys) {
    load_transposed(rows_of<T>(x.key, s.batch, s.kv_start + key, kv_head), x.key.token_stride, keys, p.head_dim,
                    key_columns);
    load_transposed(rows_of<T>(x.value, s.batch, s.kv_start + key, kv_head), x.value.token_stride, keys,
                    p.value_head_dim, value_columns);
  }

  // dS is `scale` times the gradient of the scores.
  void load_queries(const TilePlace& t, float scale) {
    const AttentionSegment& s = *t.segment;
    rows.read(t, x.statistics, x.delta + t.head * x.delta_head_stride + s.first_row + t.query, scale);
    load_head<HeadFor::kBoth>(rows_of<T>(x.query, s.batch, s.query_start + t.query, t.head), x.query.token_stride,
                              t.queries, p.head_dim, queries, kQueryPanel);
    load_head<HeadFor::kBoth>(rows_of<T>(x.out_grad, s.batch, s.query_start + t.query, t.head),
                              x.out_grad.token_stride, t.queries, p.value_head_dim, out_grads, kQueryPanel);
  }

  // The rows of a tile with unmasked keys in panel number `panel`.
  Range rows_seeing(const TilePlace& t, int64_t panel) const {
    const int64_t first = panel * kScoreWidth, keys = smaller(kScoreWidth, t.keys - first);
    const Range seeing = queries_seeing(*t.segment, t.key + first, keys, t.query, t.query + t.queries);
    if (seeing.empty()) return {0, 0};
    const Range range{(seeing.begin - t.query) / kRowPadding * kRowPadding, seeing.end - t.query};
    const TilePlace part = part_of(t, panel, range);
    if (mask_state(part) == MaskState::kAllHidden && !rows.hidden_keys_count(range.begin, range.end)) return {0, 0};
    return range;
  }

  TilePlace part_of(const TilePlace& t, int64_t panel, const Range& range) const {
    const int64_t first = panel * kScoreWidth;
    return {t.problem, t.segment, t.head, t.query + range.begin, range.end - range.begin, t.key + first,
            smaller(kScoreWidth, t.keys - first)};
  }

  float* score_grads_of(int64_t panel, int64_t row) { return score_grads + panel * kScorePanel + row * kScoreWidth; }

  // scores = P * R and score_grads_of(panel, ...) = dS for these rows.
  void recompute(const TilePlace& t, int64_t panel, const Range& range) {
    const TilePlace part = part_of(t, panel, range);
    const MaskState mask = mask_state(part);
    const int64_t first = panel * kScoreWidth, row = range.begin * kHeadWidth, count = part.queries * kScoreWidth;
    float *probabilities = scores + range.begin * kScoreWidth, *grads = score_grads_of(panel, range.begin);
    score_product<T>(part.queries, part.keys, p.head_dim, queries + row, kQueryPanel,
                     key_columns + first * transposed_width(p.head_dim), probabilities);
    score_product<T>(part.queries, part.keys, p.value_head_dim, out_grads + row, kQueryPanel,
                     value_columns + first * transposed_width(p.value_head_dim), grads);
    scale_and_bias<T>(part, kKeysContiguous, count, probabilities);
    hide(part, mask, kKeysContiguous, probabilities);
    const bool dropout = p.keep_probability < 1;
    if (dropout) {
      dropout_factors(part, kKeysContiguous, factors);
      multiply(grads, factors, count);
    }
    for (int64_t i = 0; i < part.queries; ++i) {
      const Vector max = broadcast(rows.max[range.begin + i]), weight = broadcast(rows.weight[range.begin + i]);
      const Vector score_weight = broadcast(rows.score_weight[range.begin + i]);
      const Vector delta = broadcast(rows.delta[range.begin + i]);
      for (int64_t at = i * kScoreWidth; at < (i + 1) * kScoreWidth; at += kLanes) {
        const Vector exponential = exp_below_overflow(load(probabilities + at) - max);
        const Vector probability = exponential * weight;
        store(grads + at, exponential * score_weight * (load(grads + at) - delta));
        store(probabilities + at, dropout ? probability * load(factors + at) : probability);
      }
    }
  }
};

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
