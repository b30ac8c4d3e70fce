#include "kernels/attention_table.h"
#include "kernels/simd/attention_gradients.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

int64_t workspace_floats(const AttentionProblem& p) { return KeyTile<float>::floats(p) + kTile * kTile + kTile; }

static inline bool inside_band(const TilePlace& t) {
  const AttentionBand& band = t.segment->band;
  return t.key < band.prefix ||
         (t.query - band.pre <= t.key + t.keys - 1 && t.key <= t.query + t.queries - 1 + band.next);
}

template <typename T>
void run(const AttentionBiasBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionBiasGrad& to = x.bias_grad;
  const int64_t group = p.query_heads / p.kv_heads, keys = smaller(kTile, p.kv_len - block.key);

  Arena arena{workspace};
  KeyTile<T> tile(p, x, &arena);
  float* sums = arena.take(kTile * kTile);  // one row for each query, or the first row for all of them
  float* scales = arena.take(kTile);
  fill(sums, kTile * kTile, 0);
  fill(scales, kTile, p.bias.scale);

  for (const AttentionSegment* s = block.first_segment; s < block.end_segment; ++s) {
    for (int64_t head = block.first_head; head < block.end_head; ++head) {
      if (head == block.first_head || head % group == 0) tile.load_keys(*s, head / group, block.key, keys);
      for (int64_t query = block.first_query; query < block.end_query; query += kTile) {
        const TilePlace place{&p, s, head, query, smaller(kTile, block.end_query - query), block.key, keys};
        if (!inside_band(place) || !tile.recompute(place)) continue;
        for (int64_t i = 0; i < place.queries; ++i) {
          float* row = sums + (to.query_stride ? i * kTile : 0);
          for (int64_t j = 0; j < kTile; j += kLanes)
            store(row + j, load(row + j) + load(tile.score_grads + i * kTile + j));
        }
      }
    }
  }
  T* grad = static_cast<T*>(to.data) + block.first_segment->batch * to.batch_stride +
            block.first_head * to.head_stride + block.first_query * to.query_stride + block.key;
  store_rows(sums, to.query_stride ? block.end_query - block.first_query : 1, keys, kTile, scales, grad,
             to.query_stride);
}

constexpr AttentionBiasGradTable kTable = {workspace_floats, {run<float>, run<BFloat16>, run<Float16>}};

}  // namespace

const AttentionBiasGradTable& attention_bias_grad_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
