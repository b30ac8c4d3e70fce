#include "kernels/attention_table.h"
#include "kernels/simd/attention_tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

int64_t workspace_floats(int64_t head_dim) {
  return kTile * (2 * head_dim + 4 * padded(head_dim) + 3 * kTile + 5);
}

// What the backward pass needs of every query of a block.
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

template <typename T>
void write_delta(const TilePlace& t, const AttentionBackward& x, int64_t head_dim, float* deltas) {
  const AttentionSegment& s = *t.segment;
  const T* out = rows_of<T>(x.out, s.batch, s.query_start + t.query, t.head);
  const T* out_grad = rows_of<T>(x.out_grad, s.batch, s.query_start + t.query, t.head);
  for (int64_t i = 0; i < t.queries; ++i) {
    const T* a = out + i * x.out.token_stride;
    const T* b = out_grad + i * x.out_grad.token_stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < head_dim; ++d) sum += to_float(a[d]) * to_float(b[d]);
    deltas[i] = sum;
  }
}

// dQ of one block of queries.
template <typename T>
void query_grad(const AttentionBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t head_dim = p.head_dim, width = padded(head_dim);
  const int64_t queries = smaller(kTile, s.query_len - block.begin);
  const int64_t kv_head = block.head / (p.query_heads / p.kv_heads);
  const int64_t first_query = s.query_start + block.begin;

  Arena arena{workspace};
  float* query_columns = arena.take(head_dim * kTile);
  float* out_grad_columns = arena.take(head_dim * kTile);
  float* key_rows = arena.take(kTile * width);
  float* value_rows = arena.take(kTile * width);
  float* grad_rows = arena.take(kTile * width);
  float* scores = arena.take(kTile * kTile);
  float* score_grads = arena.take(kTile * kTile);
  float* factors = arena.take(kTile * kTile);
  RowStatistics rows(&arena);
  float* scales = arena.take(kTile);

  TilePlace place{&p, &s, block.head, block.begin, queries, 0, 0};
  float* deltas = x.delta + block.head * x.delta_head_stride + s.first_row + block.begin;
  write_delta<T>(place, x, head_dim, deltas);
  rows.read(place, x.statistics, deltas);
  fill(grad_rows, kTile * width, 0);
  fill(scales, kTile, p.scale);
  load_columns(rows_of<T>(x.query, s.batch, first_query, block.head), x.query.token_stride, queries, head_dim, p.scale,
               query_columns);
  load_columns(rows_of<T>(x.out_grad, s.batch, first_query, block.head), x.out_grad.token_stride, queries, head_dim,
               1.0f, out_grad_columns);

  const TileRange range = keys_in_band(p, s, block.begin, queries);
  for (place.key = range.begin; place.key < range.end; place.key += kTile) {
    const int64_t keys = place.keys = smaller(kTile, s.kv_len - place.key);
    const MaskState mask = mask_state(place);
    if (mask == MaskState::kAllHidden) continue;  // hidden scores are constants
    load_rows(rows_of<T>(x.key, s.batch, s.kv_start + place.key, kv_head), x.key.token_stride, keys, head_dim, 1.0f,
              key_rows);
    load_rows(rows_of<T>(x.value, s.batch, s.kv_start + place.key, kv_head), x.value.token_stride, keys, head_dim, 1.0f,
              value_rows);
    tile_matmul(keys, kTile, head_dim, {key_rows, width, 1}, query_columns, kTile, scores, kTile, false);
    tile_matmul(keys, kTile, head_dim, {value_rows, width, 1}, out_grad_columns, kTile, score_grads, kTile, false);
    hide(place, mask, kQueriesContiguous, scores);
    if (p.keep_probability < 1) {
      dropout_factors(place, kQueriesContiguous, factors);
      multiply(score_grads, factors, keys * kTile);
    }
    for (int64_t i = 0; i < kTile; i += kLanes) {
      const Vector max = load(rows.max + i), weight = load(rows.score_weight + i), delta = load(rows.delta + i);
      for (int64_t j = 0; j < keys; ++j) {
        const Vector probability = exp_vector(load(scores + j * kTile + i) - max) * weight;
        store(scores + j * kTile + i, probability * (load(score_grads + j * kTile + i) - delta));
      }
    }
    tile_matmul(queries, width, keys, {scores, 1, kTile}, key_rows, width, grad_rows, width, true);
  }
  store_rows(grad_rows, queries, head_dim, scales, rows_of<T>(x.query_grad, s.batch, first_query, block.head),
             x.query_grad.token_stride);
}

// dK and dV of one block of keys, summed over the query heads that share them.
template <typename T>
void kv_grad(const AttentionBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t head_dim = p.head_dim, width = padded(head_dim), group = p.query_heads / p.kv_heads;
  const int64_t keys = smaller(kTile, s.kv_len - block.begin), first_key = s.kv_start + block.begin;

  Arena arena{workspace};
  float* key_columns = arena.take(head_dim * kTile);
  float* value_columns = arena.take(head_dim * kTile);
  float* query_rows = arena.take(kTile * width);
  float* out_grad_rows = arena.take(kTile * width);
  float* key_grad_rows = arena.take(kTile * width);
  float* value_grad_rows = arena.take(kTile * width);
  float* scores = arena.take(kTile * kTile);
  float* score_grads = arena.take(kTile * kTile);
  float* factors = arena.take(kTile * kTile);
  RowStatistics rows(&arena);
  float* ones = arena.take(kTile);
  fill(ones, kTile, 1);
  fill(key_grad_rows, kTile * width, 0);
  fill(value_grad_rows, kTile * width, 0);
  load_columns(rows_of<T>(x.key, s.batch, first_key, block.head), x.key.token_stride, keys, head_dim, 1.0f,
               key_columns);
  load_columns(rows_of<T>(x.value, s.batch, first_key, block.head), x.value.token_stride, keys, head_dim, 1.0f,
               value_columns);

  const TileRange range = queries_in_band(p, s, block.begin, keys);
  for (int64_t head = block.head * group; head < (block.head + 1) * group; ++head) {
    for (int64_t query = range.begin; query < range.end; query += kTile) {
      const int64_t queries = smaller(kTile, s.query_len - query), first_query = s.query_start + query;
      const TilePlace place{&p, &s, head, query, queries, block.begin, keys};
      rows.read(place, x.statistics, x.delta + head * x.delta_head_stride + s.first_row + query);
      const MaskState mask = mask_state(place);
      if (mask == MaskState::kAllHidden && !rows.hidden_keys_count(queries)) continue;
      load_rows(rows_of<T>(x.query, s.batch, first_query, head), x.query.token_stride, queries, head_dim, p.scale,
                query_rows);
      load_rows(rows_of<T>(x.out_grad, s.batch, first_query, head), x.out_grad.token_stride, queries, head_dim, 1.0f,
                out_grad_rows);
      tile_matmul(queries, kTile, head_dim, {query_rows, width, 1}, key_columns, kTile, scores, kTile, false);
      tile_matmul(queries, kTile, head_dim, {out_grad_rows, width, 1}, value_columns, kTile, score_grads, kTile, false);
      hide(place, mask, kKeysContiguous, scores);
      const bool dropout = p.keep_probability < 1;
      if (dropout) {
        dropout_factors(place, kKeysContiguous, factors);
        multiply(score_grads, factors, queries * kTile);
      }
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t at = i * kTile; at < (i + 1) * kTile; at += kLanes) {
          const Vector exponential = exp_vector(load(scores + at) - rows.max[i]);
          const Vector probability = exponential * rows.weight[i];
          store(score_grads + at, exponential * rows.score_weight[i] * (load(score_grads + at) - rows.delta[i]));
          store(scores + at, dropout ? probability * load(factors + at) : probability);
        }
      }
      tile_matmul(keys, width, queries, {scores, 1, kTile}, out_grad_rows, width, value_grad_rows, width, true);
      tile_matmul(keys, width, queries, {score_grads, 1, kTile}, query_rows, width, key_grad_rows, width, true);
    }
  }
  store_rows(key_grad_rows, keys, head_dim, ones, rows_of<T>(x.key_grad, s.batch, first_key, block.head),
             x.key_grad.token_stride);
  store_rows(value_grad_rows, keys, head_dim, ones, rows_of<T>(x.value_grad, s.batch, first_key, block.head),
             x.value_grad.token_stride);
}

constexpr AttentionBackwardTable kTable = {workspace_floats,
                                           {query_grad<float>, query_grad<BFloat16>, query_grad<Float16>},
                                           {kv_grad<float>, kv_grad<BFloat16>, kv_grad<Float16>}};

}  // namespace

const AttentionBackwardTable& attention_backward_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
