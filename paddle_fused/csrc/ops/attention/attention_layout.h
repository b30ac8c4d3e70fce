// Where batch, tokens, heads and head size stand in the layouts of query, key, value and the output.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace paddle_fused::ops {

struct AttentionLayout {
  const char* name;
  size_t rank;
  int batch, token, head;  // dimensions; -1: there is none

  bool varlen() const { return batch < 0; }
  bool merged() const { return head < 0; }  // the last dimension holds heads and head size together
};

// nullptr if there is no layout of this name.
const AttentionLayout* find_attention_layout(const std::string& name);
extern const char* const kAttentionLayouts;  // all names, for messages

// Sizes that are not known yet, while a static program is built, are -1.
struct AttentionSizes {
  int64_t batch, query_heads, kv_heads, query_tokens, kv_tokens, head_dim, value_head_dim;
};
// The ranks must be those of the layout. `num_heads` counts the query's heads and is read for merged layouts only.
AttentionSizes attention_sizes(const AttentionLayout& layout, int64_t num_heads, const std::vector<int64_t>& query,
                               const std::vector<int64_t>& key, const std::vector<int64_t>& value);

std::vector<int64_t> attention_out_shape(const AttentionLayout& layout, const AttentionSizes& sizes,
                                         const std::vector<int64_t>& query);
// [B, N, Sq, 8], or [T, N, 8] without a batch: CANN fills a block of 32 bytes for each row.
constexpr int64_t kStatisticsCopies = 8;
std::vector<int64_t> attention_statistics_shape(const AttentionLayout& layout, const AttentionSizes& sizes);

}  // namespace paddle_fused::ops
