#include "kernels/attention/attention.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_table.h"
#include "kernels/no_compute_guard.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

// Beyond any sequence, and small enough to avoid overflow in sums with token numbers.
constexpr int64_t kUnbounded = int64_t{1} << 40;

AttentionBand bounded(const AttentionBand& band, int64_t kv_len) {
  return {std::clamp(band.pre, -kUnbounded, kUnbounded), std::clamp(band.next, -kUnbounded, kUnbounded),
          std::clamp<int64_t>(band.prefix, 0, kv_len)};
}

std::vector<AttentionSegment> segments_of(const AttentionProblem& p) {
  std::vector<AttentionSegment> segments;
  for (int64_t b = 0; b < p.segments; ++b) {
    AttentionSegment s{b, 0, p.query_len, 0, p.kv_len, {}, b * p.query_len};
    if (p.query_ends) {
      const int64_t query_start = b ? p.query_ends[b - 1] : 0, kv_start = b ? p.kv_ends[b - 1] : 0;
      s = {0, query_start, p.query_ends[b] - query_start, kv_start, p.kv_ends[b] - kv_start, {}, query_start};
    }
    s.band = bounded(p.bands ? p.bands[b] : AttentionBand{}, s.kv_len);
    segments.push_back(s);
  }
  return segments;
}

// Every pair of query and key costs the same. The longest sequences start first, so no thread is left with a long one
// at the end.
std::vector<AttentionSegment> longest_first(std::vector<AttentionSegment> segments) {
  std::stable_sort(segments.begin(), segments.end(), [](const AttentionSegment& a, const AttentionSegment& b) {
    return static_cast<double>(a.query_len) * a.kv_len > static_cast<double>(b.query_len) * b.kv_len;
  });
  return segments;
}

// Calls run(i, workspace) for 0 <= i < count, lower i first.
template <typename Run>
void for_each(int64_t count, int64_t workspace_floats, Run run) {
  if (count == 0) return;
  const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), count));
  workspace_floats = (workspace_floats + 15) / 16 * 16;
  const Workspace workspace = allocate(workspace_floats * threads);
// monotonic: Paddle's OpenMP runtime lacks the entry points of gcc's default, the non-monotonic schedule.
#pragma omp parallel for schedule(monotonic : dynamic) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) run(i, workspace.get() + omp_get_thread_num() * workspace_floats);
}

// Calls run(block, workspace) for every block of every head. The last queries of a sequence start first, because they
// attend to the most keys under a causal mask.
template <typename Run>
void for_each_query_block(const AttentionProblem& problem, const std::vector<AttentionSegment>& segments,
                          int64_t block_queries, int64_t workspace_floats, Run run) {
  std::vector<AttentionBlock> blocks;
  for (const AttentionSegment& segment : segments)
    for (int64_t head = 0; head < problem.query_heads; ++head)
      for (int64_t block = (segment.query_len + block_queries - 1) / block_queries; block-- > 0;)
        blocks.push_back({&problem, segment, head, block * block_queries});
  for_each(static_cast<int64_t>(blocks.size()), workspace_floats,
           [&](int64_t i, float* workspace) { run(blocks[i], workspace); });
}

// Calls run(block, workspace) for every tile of the bias gradient.
template <typename Run>
void for_each_bias_block(const AttentionProblem& p, const std::vector<AttentionSegment>& segments,
                         const AttentionBiasGrad& grad, const AttentionBiasGradTable& table, Run run) {
  const auto tiles = [](int64_t tokens, int64_t size) { return (tokens + size - 1) / size; };
  const int64_t batches = grad.batch_stride ? p.segments : 1, heads = grad.head_stride ? p.query_heads : 1;
  const int64_t query_tiles = grad.query_stride ? tiles(p.query_len, table.queries) : 1;
  const int64_t key_tiles = tiles(p.kv_len, table.keys);
  for_each(batches * heads * query_tiles * key_tiles, table.workspace_floats(p), [&](int64_t i, float* workspace) {
    const int64_t key = i % key_tiles * table.keys, query = i / key_tiles % query_tiles * table.queries;
    const int64_t head = i / key_tiles / query_tiles % heads, batch = i / key_tiles / query_tiles / heads;
    const AttentionSegment* first = segments.data() + batch;
    run(AttentionBiasBlock{&p, first, grad.batch_stride ? first + 1 : first + p.segments, head,
                           grad.head_stride ? head + 1 : p.query_heads, query,
                           grad.query_stride ? std::min(query + table.queries, p.query_len) : p.query_len, key},
        workspace);
  });
}

// The blocks of keys of a backward pass, and their shared state.
struct KeyBlocks {
  std::vector<AttentionKeyBlock> blocks;  // alternating between heads, because blocks of one head wait for each other
  std::vector<int64_t> turns;             // one per tile of queries
  Workspace query_grads;

  KeyBlocks(const AttentionProblem& problem, const std::vector<AttentionSegment>& segments,
            const AttentionBackwardTable& table) {
    const auto parts = [](int64_t tokens, int64_t size) { return (tokens + size - 1) / size; };
    const int64_t group = problem.query_heads / problem.kv_heads, tile_floats = table.tile_floats(problem);
    // A single block of keys needs no partial sums.
    const auto tiles_of = [&](const AttentionSegment& s) {
      return s.kv_len <= table.keys ? 0 : group * parts(s.query_len, table.tile_queries);
    };
    int64_t count = 0, tiles = 0;
    for (const AttentionSegment& s : segments) {
      count += problem.kv_heads * parts(s.kv_len, table.keys);
      tiles += problem.kv_heads * tiles_of(s);
    }
    turns.assign(tiles, 0);
    query_grads = allocate(std::max<int64_t>(tiles * tile_floats, 1));
    blocks.reserve(count);
    int64_t tile = 0;
    for (const AttentionSegment& s : segments) {
      const int64_t head_tiles = tiles_of(s);
      for (int64_t begin = 0; begin < s.kv_len; begin += table.keys)
        for (int64_t head = 0; head < problem.kv_heads; ++head)
          blocks.push_back({{&problem, s, head, begin},
                            head_tiles ? query_grads.get() + (tile + head * head_tiles) * tile_floats : nullptr,
                            turns.data() + tile + head * head_tiles});
      tile += problem.kv_heads * head_tiles;
    }
  }
};

}  // namespace

void attention_forward(const AttentionProblem& problem, const AttentionInput& query, const AttentionInput& key,
                       const AttentionInput& value, const AttentionOutput& out, const SoftmaxStatistics& statistics) {
  if (compute_is_disabled()) return;
  const AttentionForward tensors{query, key, value, out, statistics};
  const bool bfloat16 = problem.type == ElementType::kBFloat16;
  const AttentionForwardTable& table = PF_SELECT_PRODUCT_TABLE(attention_forward_table, bfloat16);
  const auto run = table.run[static_cast<int>(problem.type)];
  for_each_query_block(problem, longest_first(segments_of(problem)), table.queries, table.workspace_floats(problem),
                       [&](const AttentionBlock& block, float* workspace) { run(block, tensors, workspace); });
}

void attention_backward(const AttentionProblem& problem, const AttentionInput& query, const AttentionInput& key,
                        const AttentionInput& value, const AttentionInput& out, const AttentionInput& out_grad,
                        const SoftmaxStatistics& statistics, const AttentionOutput& query_grad,
                        const AttentionOutput& key_grad, const AttentionOutput& value_grad,
                        const AttentionBiasGrad& bias_grad) {
  if (compute_is_disabled()) return;
  const std::vector<AttentionSegment> segments = segments_of(problem), ordered = longest_first(segments);
  const int64_t rows = segments.empty() ? 0 : segments.back().first_row + segments.back().query_len;
  const Workspace delta = allocate(std::max<int64_t>(rows * problem.query_heads, 1));
  const AttentionBackward tensors{query,      key,      value,      out,       out_grad,    statistics,
                                  query_grad, key_grad, value_grad, bias_grad, delta.get(), rows};
  const bool bfloat16 = problem.type == ElementType::kBFloat16;
  const AttentionBackwardTable& table = PF_SELECT_PRODUCT_TABLE(attention_backward_table, bfloat16);
  const int type = static_cast<int>(problem.type);
  for_each_query_block(
      problem, ordered, table.tile_queries, table.prepare_floats(problem),
      [&](const AttentionBlock& tile, float* workspace) { table.prepare[type](tile, tensors, workspace); });
  const KeyBlocks work(problem, ordered, table);
  for_each(static_cast<int64_t>(work.blocks.size()), table.workspace_floats(problem),
           [&](int64_t i, float* workspace) { table.run[type](work.blocks[i], tensors, workspace); });
  if (!bias_grad.data) return;
  const AttentionBiasGradTable& bias_table = PF_SELECT_PRODUCT_TABLE(attention_bias_grad_table, bfloat16);
  for_each_bias_block(problem, segments, bias_grad, bias_table, [&](const AttentionBiasBlock& block, float* workspace) {
    bias_table.run[type](block, tensors, workspace);
  });
}

}  // namespace paddle_fused::kernels
