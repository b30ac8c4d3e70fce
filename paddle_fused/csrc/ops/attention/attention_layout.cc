#include "ops/attention/attention_layout.h"

namespace paddle_fused::ops {
namespace {

constexpr AttentionLayout kLayouts[] = {
    {"BSH", 3, 0, 1, -1}, {"SBH", 3, 1, 0, -1}, {"BSND", 4, 0, 1, 2}, {"BNSD", 4, 0, 2, 1}, {"TND", 3, -1, 0, 1},
};

// -1 if a factor is unknown or the division is undefined.
int64_t quotient(int64_t a, int64_t b) { return a < 0 || b <= 0 ? -1 : a / b; }
int64_t product(int64_t a, int64_t b) { return a < 0 || b < 0 ? -1 : a * b; }

}  // namespace

const char* const kAttentionLayouts = "BSH, SBH, BSND, BNSD, TND";

const AttentionLayout* find_attention_layout(const std::string& name) {
  for (const AttentionLayout& layout : kLayouts)
    if (name == layout.name) return &layout;
  return nullptr;
}

AttentionSizes attention_sizes(const AttentionLayout& layout, int64_t num_heads, const std::vector<int64_t>& query,
                               const std::vector<int64_t>& key, const std::vector<int64_t>& value) {
  AttentionSizes s;
  s.batch = layout.varlen() ? 1 : query[layout.batch];
  s.query_tokens = query[layout.token];
  s.kv_tokens = key[layout.token];
  if (layout.merged()) {
    s.query_heads = num_heads;
    s.head_dim = quotient(query.back(), num_heads);
    s.kv_heads = quotient(key.back(), s.head_dim);
    s.value_head_dim = quotient(value.back(), s.kv_heads);
  } else {
    s.query_heads = query[layout.head];
    s.kv_heads = key[layout.head];
    s.head_dim = query.back();
    s.value_head_dim = value.back();
  }
  return s;
}

std::vector<int64_t> attention_out_shape(const AttentionLayout& layout, const AttentionSizes& sizes,
                                         const std::vector<int64_t>& query) {
  std::vector<int64_t> shape = query;
  shape.back() = layout.merged() ? product(sizes.query_heads, sizes.value_head_dim) : sizes.value_head_dim;
  return shape;
}

std::vector<int64_t> attention_statistics_shape(const AttentionLayout& layout, const AttentionSizes& s) {
  if (layout.varlen()) return {s.query_tokens, s.query_heads, kStatisticsCopies};
  return {s.batch, s.query_heads, s.query_tokens, kStatisticsCopies};
}

}  // namespace paddle_fused::ops
