#include "kernels/attention_table.h"
#include "kernels/simd/attention_tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

int64_t workspace_floats(const AttentionProblem& p) {
  return kTile * (p.head_dim + padded(p.head_dim) + 2 * padded(p.value_head_dim) + 2 * kTile + 3);
}

// Running maximum, sum and rescaling factor of every query of the block.
struct RunningSoftmax {
  float* max;
  float* sum;
  float* rescale;

  // scores(i, j) becomes exp(scores(i, j) - max_i), with the maximum and the sum over all keys up to here.
  void update(float* scores, int64_t keys) {
    for (int64_t i = 0; i < kTile; i += kLanes) {
      const Vector old_max = load(max + i);
      Vector new_max = old_max;
      for (int64_t j = 0; j < keys; ++j) {
        const Vector score = load(scores + j * kTile + i);
        new_max = score > new_max ? score : new_max;
      }
      Vector total{};
      for (int64_t j = 0; j < keys; ++j) {
        const Vector weight = exp_vector(load(scores + j * kTile + i) - new_max);
        total += weight;
        store(scores + j * kTile + i, weight);
      }
      const Vector factor = exp_vector(old_max - new_max);
      store(rescale + i, factor);
      store(sum + i, load(sum + i) * factor + total);
      store(max + i, new_max);
    }
  }

  // Some query has seen only hidden keys so far, so that further hidden keys still count.
  bool hidden_keys_count(int64_t queries) const {
    for (int64_t i = 0; i < queries; ++i)
      if (max[i] <= kHiddenScore) return true;
    return false;
  }
};

void scale_rows(float* rows, int64_t count, int64_t width, const float* factors) {
  for (int64_t i = 0; i < count; ++i) {
    if (factors[i] == 1.0f) continue;
    for (int64_t d = 0; d < width; d += kLanes) store(rows + i * width + d, load(rows + i * width + d) * factors[i]);
  }
}

template <typename T>
void run(const AttentionBlock& block, const AttentionForward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t head_dim = p.head_dim, width = padded(head_dim);
  const int64_t value_head_dim = p.value_head_dim, value_width = padded(value_head_dim);
  const int64_t queries = smaller(kTile, s.query_len - block.begin);
  const int64_t kv_head = block.head / (p.query_heads / p.kv_heads);

  Arena arena{workspace};
  float* query_columns = arena.take(head_dim * kTile);
  float* key_rows = arena.take(kTile * width);
  float* value_rows = arena.take(kTile * value_width);
  float* out_rows = arena.take(kTile * value_width);
  float* scores = arena.take(kTile * kTile);
  float* factors = arena.take(kTile * kTile);
  RunningSoftmax softmax{arena.take(kTile), arena.take(kTile), arena.take(kTile)};
  fill(out_rows, kTile * value_width, 0);
  fill(softmax.max, kTile, kHiddenScore);
  fill(softmax.sum, kTile, 0);
  load_columns(rows_of<T>(x.query, s.batch, s.query_start + block.begin, block.head), x.query.token_stride, queries,
               head_dim, query_columns);

  const SeenKeys seen(s, block.begin, queries);
  for (int64_t key = seen.first(); key < seen.end; key = seen.after(key)) {
    const int64_t keys = smaller(kTile, s.kv_len - key);
    const TilePlace place{&p, &s, block.head, block.begin, queries, key, keys};
    const MaskState mask = mask_state(place);
    if (mask == MaskState::kAllHidden && !softmax.hidden_keys_count(queries)) continue;
    load_rows(rows_of<T>(x.key, s.batch, s.kv_start + key, kv_head), x.key.token_stride, keys, head_dim, key_rows);
    matmul_over_head<T>(keys, head_dim, {key_rows, width, 1}, query_columns, scores);
    scale_and_bias<T>(place, kQueriesContiguous, keys * kTile, scores);
    hide(place, mask, kQueriesContiguous, scores);
    softmax.update(scores, keys);
    if (p.keep_probability < 1) {
      dropout_factors(place, kQueriesContiguous, factors);
      multiply(scores, factors, keys * kTile);
    }
    load_rows(rows_of<T>(x.value, s.batch, s.kv_start + key, kv_head), x.value.token_stride, keys, value_head_dim,
              value_rows);
    scale_rows(out_rows, queries, value_width, softmax.rescale);
    tile_matmul(queries, value_width, keys, {scores, 1, kTile}, value_rows, value_width, out_rows, value_width, true);
  }

  const SoftmaxStatistics& to = x.statistics;
  const int64_t first = s.batch * to.batch_stride + (s.query_start + block.begin) * to.token_stride +
                        block.head * to.head_stride;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t c = 0; c < to.copies; ++c) {
      to.max[first + i * to.token_stride + c] = softmax.max[i];
      to.sum[first + i * to.token_stride + c] = softmax.sum[i];
    }
    softmax.rescale[i] = softmax.sum[i] == 0 ? 0.0f : 1.0f / softmax.sum[i];
  }
  store_rows(out_rows, queries, value_head_dim, value_width, softmax.rescale,
             rows_of<T>(x.out, s.batch, s.query_start + block.begin, block.head), x.out.token_stride);
}

constexpr AttentionForwardTable kTable = {workspace_floats, {run<float>, run<BFloat16>, run<Float16>}};

}  // namespace

const AttentionForwardTable& attention_forward_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
