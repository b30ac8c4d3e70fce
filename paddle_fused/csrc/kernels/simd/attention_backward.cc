#include "kernels/attention_table.h"
#include "kernels/simd/attention_gradients.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The query pass and the key pass.
int64_t workspace_floats(const AttentionProblem& p) {
  const int64_t width = padded(p.head_dim), value_width = padded(p.value_head_dim);
  const int64_t query_pass = kTile * (p.head_dim + p.value_head_dim + 2 * width + value_width + 3 * kTile + 1) +
                             RowStatistics::floats();
  return larger(query_pass, KeyTile<float>::floats(p) + kTile * (width + value_width + 1));
}

// dQ of one block of queries.
template <typename T>
void query_grad(const AttentionBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t head_dim = p.head_dim, width = padded(head_dim);
  const int64_t value_head_dim = p.value_head_dim, value_width = padded(value_head_dim);
  const int64_t queries = smaller(kTile, s.query_len - block.begin);
  const int64_t kv_head = block.head / (p.query_heads / p.kv_heads);
  const int64_t first_query = s.query_start + block.begin;

  Arena arena{workspace};
  float* query_columns = arena.take(head_dim * kTile);
  float* out_grad_columns = arena.take(value_head_dim * kTile);
  float* key_rows = arena.take(kTile * width);
  float* value_rows = arena.take(kTile * value_width);
  float* grad_rows = arena.take(kTile * width);
  float* scores = arena.take(kTile * kTile);
  float* score_grads = arena.take(kTile * kTile);
  float* factors = arena.take(kTile * kTile);
  RowStatistics rows(&arena);
  float* scales = arena.take(kTile);

  fill(grad_rows, kTile * width, 0);
  load_columns(rows_of<T>(x.query, s.batch, first_query, block.head), x.query.token_stride, queries, head_dim,
               query_columns);
  load_columns(rows_of<T>(x.out_grad, s.batch, first_query, block.head), x.out_grad.token_stride, queries,
               value_head_dim, out_grad_columns);
  float* out_columns = value_rows;  // not in use yet
  load_columns(rows_of<T>(x.out, s.batch, first_query, block.head), x.out.token_stride, queries, value_head_dim,
               out_columns);
  // In the order of dP's sums, so that dP - delta is exactly zero in a row that sees one key only.
  sums_over_head<T>(value_head_dim, out_columns, out_grad_columns, scales);
  float* deltas = x.delta + block.head * x.delta_head_stride + s.first_row + block.begin;
  for (int64_t i = 0; i < queries; ++i) deltas[i] = scales[i];
  TilePlace place{&p, &s, block.head, block.begin, queries, 0, 0};
  rows.read(place, x.statistics, deltas);
  fill(scales, kTile, p.scale);

  const SeenKeys seen(s, block.begin, queries);
  for (place.key = seen.first(); place.key < seen.end; place.key = seen.after(place.key)) {
    const int64_t keys = place.keys = smaller(kTile, s.kv_len - place.key);
    const MaskState mask = mask_state(place);
    if (mask == MaskState::kAllHidden) continue;  // hidden scores are constants
    load_rows(rows_of<T>(x.key, s.batch, s.kv_start + place.key, kv_head), x.key.token_stride, keys, head_dim,
              key_rows);
    load_rows(rows_of<T>(x.value, s.batch, s.kv_start + place.key, kv_head), x.value.token_stride, keys,
              value_head_dim, value_rows);
    matmul_over_head<T>(keys, head_dim, {key_rows, width, 1}, query_columns, scores);
    matmul_over_head<T>(keys, value_head_dim, {value_rows, value_width, 1}, out_grad_columns, score_grads);
    scale_and_bias<T>(place, kQueriesContiguous, keys * kTile, scores);
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
  store_rows(grad_rows, queries, head_dim, width, scales, rows_of<T>(x.query_grad, s.batch, first_query, block.head),
             x.query_grad.token_stride);
}

// dK and dV of one block of keys, summed over the query heads that share them.
template <typename T>
void kv_grad(const AttentionBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t group = p.query_heads / p.kv_heads;
  const int64_t keys = smaller(kTile, s.kv_len - block.begin), first_key = s.kv_start + block.begin;

  Arena arena{workspace};
  KeyTile<T> tile(p, x, &arena);
  const int64_t width = tile.width, value_width = tile.value_width;
  float* key_grad_rows = arena.take(kTile * width);
  float* value_grad_rows = arena.take(kTile * value_width);
  float* scales = arena.take(kTile);
  fill(key_grad_rows, kTile * width, 0);
  fill(value_grad_rows, kTile * value_width, 0);
  tile.load_keys(s, block.head, block.begin, keys);

  const TileRange range = queries_seeing(s, block.begin, keys);
  for (int64_t head = block.head * group; head < (block.head + 1) * group; ++head) {
    for (int64_t query = range.begin; query < range.end; query += kTile) {
      const int64_t queries = smaller(kTile, s.query_len - query);
      if (!tile.recompute({&p, &s, head, query, queries, block.begin, keys})) continue;
      tile_matmul(keys, value_width, queries, {tile.scores, 1, kTile}, tile.out_grad_rows, value_width,
                  value_grad_rows, value_width, true);
      tile_matmul(keys, width, queries, {tile.score_grads, 1, kTile}, tile.query_rows, width, key_grad_rows, width,
                  true);
    }
  }
  fill(scales, kTile, p.scale);
  store_rows(key_grad_rows, keys, p.head_dim, width, scales, rows_of<T>(x.key_grad, s.batch, first_key, block.head),
             x.key_grad.token_stride);
  fill(scales, kTile, 1);
  store_rows(value_grad_rows, keys, p.value_head_dim, value_width, scales,
             rows_of<T>(x.value_grad, s.batch, first_key, block.head), x.value_grad.token_stride);
}

constexpr AttentionBackwardTable kTable = {workspace_floats,
                                           {query_grad<float>, query_grad<BFloat16>, query_grad<Float16>},
                                           {kv_grad<float>, kv_grad<BFloat16>, kv_grad<Float16>}};

}  // namespace

const AttentionBackwardTable& attention_backward_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
