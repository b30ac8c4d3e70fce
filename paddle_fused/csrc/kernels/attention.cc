#include "kernels/attention.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels/attention_table.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

// Far beyond any sequence, and small enough that sums with token numbers do not overflow.
constexpr int64_t kUnbounded = int64_t{1} << 40;

AttentionProblem with_bounded_band(AttentionProblem problem) {
  problem.pre_tokens = std::min(std::max(problem.pre_tokens, -kUnbounded), kUnbounded);
  problem.next_tokens = std::min(std::max(problem.next_tokens, -kUnbounded), kUnbounded);
  return problem;
}

std::vector<AttentionSegment> segments_of(const AttentionProblem& p) {
  std::vector<AttentionSegment> segments;
  for (int64_t b = 0; b < p.segments; ++b) {
    if (p.query_ends) {
      const int64_t query_start = b ? p.query_ends[b - 1] : 0, kv_start = b ? p.kv_ends[b - 1] : 0;
      segments.push_back(
          {0, query_start, p.query_ends[b] - query_start, kv_start, p.kv_ends[b] - kv_start, query_start});
    } else {
      segments.push_back({b, 0, p.query_len, 0, p.kv_len, b * p.query_len});
    }
  }
  return segments;
}

// Calls run(block, workspace) for every block of every head. Blocks share nothing, so any thread may take any of them.
template <typename Run>
void for_each_block(const AttentionProblem& problem, const std::vector<AttentionSegment>& segments,
                    int64_t AttentionSegment::*length, int64_t heads, int64_t workspace_floats, Run run) {
  std::vector<AttentionBlock> blocks;
  for (const AttentionSegment& segment : segments)
    for (int64_t begin = 0; begin < segment.*length; begin += kAttentionTile)
      blocks.push_back({&problem, segment, 0, begin});
  const int64_t count = static_cast<int64_t>(blocks.size()) * heads;
  if (count == 0) return;
  const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), count));
  workspace_floats = (workspace_floats + 15) / 16 * 16;
  const Workspace workspace = allocate(workspace_floats * threads);
// monotonic: Paddle's OpenMP runtime has no entry points for gcc's default, the non-monotonic schedule.
#pragma omp parallel for schedule(monotonic : dynamic) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    AttentionBlock block = blocks[i / heads];
    block.head = i % heads;
    run(block, workspace.get() + omp_get_thread_num() * workspace_floats);
  }
}

}  // namespace

void attention_forward(const AttentionProblem& given, const AttentionInput& query, const AttentionInput& key,
                       const AttentionInput& value, const AttentionOutput& out, const SoftmaxStatistics& statistics) {
  const AttentionProblem problem = with_bounded_band(given);
  const AttentionForward tensors{query, key, value, out, statistics};
  const AttentionForwardTable& table = PF_SELECT_TABLE(attention_forward_table);
  const auto run = table.run[static_cast<int>(problem.type)];
  for_each_block(problem, segments_of(problem), &AttentionSegment::query_len, problem.query_heads,
                 table.workspace_floats(problem.head_dim),
                 [&](const AttentionBlock& block, float* workspace) { run(block, tensors, workspace); });
}

void attention_backward(const AttentionProblem& given, const AttentionInput& query, const AttentionInput& key,
                        const AttentionInput& value, const AttentionInput& out, const AttentionInput& out_grad,
                        const SoftmaxStatistics& statistics, const AttentionOutput& query_grad,
                        const AttentionOutput& key_grad, const AttentionOutput& value_grad) {
  const AttentionProblem problem = with_bounded_band(given);
  const std::vector<AttentionSegment> segments = segments_of(problem);
  const int64_t rows = segments.empty() ? 0 : segments.back().first_row + segments.back().query_len;
  const Workspace delta = allocate(std::max<int64_t>(rows * problem.query_heads, 1));
  const AttentionBackward tensors{query,      key,      value,      out,         out_grad, statistics,
                                  query_grad, key_grad, value_grad, delta.get(), rows};
  const AttentionBackwardTable& table = PF_SELECT_TABLE(attention_backward_table);
  const int64_t workspace_floats = table.workspace_floats(problem.head_dim);
  const auto query_pass = table.query_grad[static_cast<int>(problem.type)];
  const auto kv_pass = table.kv_grad[static_cast<int>(problem.type)];
  // Two passes, each recomputing P, rather than one that would have to add to dQ from several threads.
  for_each_block(problem, segments, &AttentionSegment::query_len, problem.query_heads, workspace_floats,
                 [&](const AttentionBlock& block, float* workspace) { query_pass(block, tensors, workspace); });
  for_each_block(problem, segments, &AttentionSegment::kv_len, problem.kv_heads, workspace_floats,
                 [&](const AttentionBlock& block, float* workspace) { kv_pass(block, tensors, workspace); });
}

}  // namespace paddle_fused::kernels
