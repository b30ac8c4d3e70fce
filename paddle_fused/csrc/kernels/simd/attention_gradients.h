// Pieces shared by the passes of attention's backward, for simd/*.cc only.
#pragma once
#include "kernels/simd/attention_tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// What the backward pass needs of every query of a tile.
struct RowStatistics {
  float* max;
  float* weight;        // 1 / sum
  float* score_weight;  // the same, but 0 for queries that see hidden keys only: their scores are constants
  float* delta;         // rowsum(dO * O)

  explicit RowStatistics(Arena* arena)
      : max(arena->take(kTile)),
        weight(arena->take(kTile)),
        score_weight(arena->take(kTile)),
        delta(arena->take(kTile)) {
    fill(max, 4 * kTile, 0);
  }
  static int64_t floats() { return 4 * kTile; }

  void read(const TilePlace& t, const SoftmaxStatistics& from, const float* deltas) {
    const AttentionSegment& s = *t.segment;
    const int64_t first = s.batch * from.batch_stride + (s.query_start + t.query) * from.token_stride +
                          t.head * from.head_stride;
    for (int64_t i = 0; i < t.queries; ++i) {
      const float sum = from.sum[first + i * from.token_stride];
      max[i] = from.max[first + i * from.token_stride];
      weight[i] = sum == 0 ? 0.0f : 1.0f / sum;
      score_weight[i] = max[i] <= kHiddenScore ? 0.0f : weight[i];
      delta[i] = deltas[i];
    }
    for (int64_t i = t.queries; i < kTile; ++i) weight[i] = score_weight[i] = delta[i] = 0;
  }

  bool hidden_keys_count(int64_t queries) const {
    for (int64_t i = 0; i < queries; ++i)
      if (max[i] <= kHiddenScore) return true;
    return false;
  }
};

// P and dS of one tile after the other, of the same keys: load_keys, then recompute for each tile of queries.
template <typename T>
struct KeyTile {
  const AttentionProblem& problem;
  const AttentionBackward& tensors;
  const int64_t width, value_width;
  float *key_columns, *value_columns, *query_rows, *out_grad_rows;
  float *scores, *score_grads, *factors;
  RowStatistics rows;

  KeyTile(const AttentionProblem& p, const AttentionBackward& x, Arena* arena)
      : problem(p),
        tensors(x),
        width(padded(p.head_dim)),
        value_width(padded(p.value_head_dim)),
        key_columns(arena->take(p.head_dim * kTile)),
        value_columns(arena->take(p.value_head_dim * kTile)),
        query_rows(arena->take(kTile * width)),
        out_grad_rows(arena->take(kTile * value_width)),
        scores(arena->take(kTile * kTile)),
        score_grads(arena->take(kTile * kTile)),
        factors(arena->take(kTile * kTile)),
        rows(arena) {}
  static int64_t floats(const AttentionProblem& p) {
    return kTile * (p.head_dim + p.value_head_dim + padded(p.head_dim) + padded(p.value_head_dim) + 3 * kTile) +
           RowStatistics::floats();
  }

  void load_keys(const AttentionSegment& s, int64_t kv_head, int64_t key, int64_t keys) {
    const AttentionInput &k = tensors.key, &v = tensors.value;
    load_columns(rows_of<T>(k, s.batch, s.kv_start + key, kv_head), k.token_stride, keys, problem.head_dim,
                 key_columns);
    load_columns(rows_of<T>(v, s.batch, s.kv_start + key, kv_head), v.token_stride, keys, problem.value_head_dim,
                 value_columns);
  }

  // scores = P * R and score_grads = dS, keys contiguous; query_rows = Q and out_grad_rows = dO. False if all of
  // it is zero; nothing is computed then.
  bool recompute(const TilePlace& t) {
    const AttentionSegment& s = *t.segment;
    const int64_t first_query = s.query_start + t.query;
    rows.read(t, tensors.statistics, tensors.delta + t.head * tensors.delta_head_stride + s.first_row + t.query);
    const MaskState mask = mask_state(t);
    if (mask == MaskState::kAllHidden && !rows.hidden_keys_count(t.queries)) return false;
    load_rows(rows_of<T>(tensors.query, s.batch, first_query, t.head), tensors.query.token_stride, t.queries,
              problem.head_dim, query_rows);
    load_rows(rows_of<T>(tensors.out_grad, s.batch, first_query, t.head), tensors.out_grad.token_stride, t.queries,
              problem.value_head_dim, out_grad_rows);
    matmul_over_head<T>(t.queries, problem.head_dim, {query_rows, width, 1}, key_columns, scores);
    matmul_over_head<T>(t.queries, problem.value_head_dim, {out_grad_rows, value_width, 1}, value_columns, score_grads);
    scale_and_bias<T>(t, kKeysContiguous, t.queries * kTile, scores);
    hide(t, mask, kKeysContiguous, scores);
    const bool dropout = problem.keep_probability < 1;
    if (dropout) {
      dropout_factors(t, kKeysContiguous, factors);
      multiply(score_grads, factors, t.queries * kTile);
    }
    for (int64_t i = 0; i < t.queries; ++i) {
      for (int64_t at = i * kTile; at < (i + 1) * kTile; at += kLanes) {
        const Vector exponential = exp_vector(load(scores + at) - rows.max[i]);
        const Vector probability = exponential * rows.weight[i];
        store(score_grads + at, exponential * rows.score_weight[i] * (load(score_grads + at) - rows.delta[i]));
        store(scores + at, dropout ? probability * load(factors + at) : probability);
      }
    }
    return true;
  }
};

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
