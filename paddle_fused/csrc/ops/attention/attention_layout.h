// The dimensions of batch, tokens, heads and head size in the layouts of query, key, value and the output.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace paddle_fused::ops {

struct AttentionLayout {
  const char* name;
  size_t rank;
  int batch, token, head;  // dimensions; -1: none

  bool varlen() const { return batch < 0; }
  bool merged() const { return head < 0; }  // the last dimension combines heads and head size
};

// Returns nullptr for an unknown name.
const AttentionLayout* find_attention_layout(const std::string& name);
extern const char* const kAttentionLayouts;  // all names, for messages

// Sizes that are unknown while a static program is built are -1.
struct AttentionSizes {
  int64_t batch, query_heads, kv_heads, query_tokens, kv_tokens, head_dim, value_head_dim;
};
// The ranks must match the layout. `num_heads` is the number of query heads, used for merged layouts only.
AttentionSizes attention_sizes(const AttentionLayout& layout, int64_t num_heads, const std::vector<int64_t>& query,
                               const std::vector<int64_t>& key, const std::vector<int64_t>& value);

std::vector<int64_t> attention_out_shape(const AttentionLayout& layout, const AttentionSizes& sizes,
                                         const std::vector<int64_t>& query);
// [B, N, Sq, 8], or [T, N, 8] without a batch: CANN fills a block of 32 bytes per row.
constexpr int64_t kStatisticsCopies = 8;
std::vector<int64_t> attention_statistics_shape(const AttentionLayout& layout, const AttentionSizes& sizes);

}  // namespace paddle_fused::ops
