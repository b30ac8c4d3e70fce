#include "kernels/attention/attention_table.h"
#include "kernels/attention/simd/attention_gradients.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

constexpr int64_t kSums = kQueryTile * kKeyBlock;

int64_t workspace_floats(const AttentionProblem& p) {
  return GradientTile<float>::floats(p) + kSums + 16;
}

template <typename T>
void run(const AttentionBiasBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionBiasGrad& to = x.bias_grad;
  const int64_t group = p.query_heads / p.kv_heads, keys = smaller(kKeyBlock, p.kv_len - block.key);

  const ProductUnit unit;
  Arena arena{workspace};
  GradientTile<T> tile(p, x, &arena);
  float* sums = arena.take(kSums);  // one row per query, or one row for all of them
  fill(sums, kSums, 0);

  for (const AttentionSegment* s = block.first_segment; s < block.end_segment; ++s) {
    for (int64_t head = block.first_head; head < block.end_head; ++head) {
      if (head == block.first_head || head % group == 0) tile.load_keys(*s, head / group, block.key, keys);
      for (int64_t query = block.first_query; query < block.end_query; query += kQueryTile) {
        const TilePlace place{&p, s, head, query, smaller(kQueryTile, block.end_query - query), block.key, keys};
        if (queries_seeing(*s, block.key, keys, query, query + place.queries).empty()) continue;
        tile.load_queries(place, p.bias.scale);
        for (int64_t panel = 0; panel * kScoreWidth < keys; ++panel) {
          const Range rows = tile.rows_seeing(place, panel);
          if (rows.empty()) continue;
          tile.recompute(place, panel, rows);
          for (int64_t i = rows.begin; i < rows.end; ++i) {
            float* row = sums + (to.query_stride ? i * kKeyBlock : 0) + panel * kScoreWidth;
            const float* grads = tile.score_grads_of(panel, i);
            for (int64_t j = 0; j < kScoreWidth; j += kLanes) store(row + j, load(row + j) + load(grads + j));
          }
        }
      }
    }
  }
  T* grad = static_cast<T*>(to.data) + block.first_segment->batch * to.batch_stride +
            block.first_head * to.head_stride + block.first_query * to.query_stride + block.key;
  for (int64_t i = 0; i < (to.query_stride ? block.end_query - block.first_query : 1); ++i)
    for (int64_t j = 0; j < keys; ++j) from_float(sums[i * kKeyBlock + j], grad + i * to.query_stride + j);
}

constexpr AttentionBiasGradTable kTable = {kQueryTile, kKeyBlock, workspace_floats,
                                          PF_EACH_TYPE(run)};

}  // namespace

const AttentionBiasGradTable& attention_bias_grad_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
