// The contract of aclnnFlashAttentionScore and aclnnFlashAttentionVarLenScore for flash_attention_npu.
#include <algorithm>
#include <sstream>
#include <string>

#include "custom_ops/checks.h"
#include "custom_ops/flash_attention.h"

namespace virtual_npu {
namespace {

constexpr char kOp[] = "flash_attention_npu";
namespace rules = contract::rules;
namespace limits = contract::limits;
using Shape = std::vector<int64_t>;

void check_types(const FlashAttention& call) {
  const Argument arguments[] = {{"query", call.query}, {"key", call.key}, {"value", call.value}};
  for (const Argument& argument : arguments)
    check_dtype(rules::attention_plugin_dtype, kOp, argument, contract::dtypes::attention_plugin_dtype);
  check_same_dtype(rules::attention_same_dtype, kOp, {arguments[0], arguments[1], arguments[2]});
}

// CANN's limits start at 1, but batch and tokens may be 0, because an empty call never reaches CANN.
void check_limit(const contract::Rule& rule, const char* what, int64_t size, int64_t smallest, int64_t largest) {
  if (size >= smallest && size <= largest) return;
  refuse(rule, kOp, std::string(what) + " is " + std::to_string(size));
}

void check_shapes(const FlashAttention& call) {
  const Shape query = call.query.shape(), key = call.key.shape(), value = call.value.shape();
  const size_t rank = call.is_varlen ? 3 : 4;
  for (const auto& [name, shape] : {std::pair("query", query), std::pair("key", key), std::pair("value", value)}) {
    if (shape.size() == rank) continue;
    refuse(rules::attention_plugin_rank, kOp,
           std::string(name) + " has shape " + text(shape) + " and is_varlen is " +
               (call.is_varlen ? "True" : "False"));
  }
  if (key != value)
    refuse(rules::attention_plugin_value, kOp,
           "key has shape " + text(key) + " and value has shape " + text(value));
  const std::string both = "query has shape " + text(query) + " and key has shape " + text(key);
  const int64_t q_heads = query[rank - 2], kv_heads = key[rank - 2];
  if (query[rank - 1] != key[rank - 1]) refuse(rules::attention_same_head_dim, kOp, both);
  if (!call.is_varlen && query[0] != key[0]) refuse(rules::attention_same_batch, kOp, both);
  check_limit(rules::attention_head_dim, "the head size", query[rank - 1], 1,
              at_release(limits::attention_head_dim));
  check_limit(rules::attention_heads, "the number of query heads", q_heads, 1, limits::attention_heads);
  check_limit(rules::attention_heads, "the number of key heads", kv_heads, 1, limits::attention_heads);
  if (q_heads % kv_heads != 0) refuse(rules::attention_head_groups, kOp, both);
  if (!call.is_varlen) check_limit(rules::attention_batch, "the batch size", query[0], 0, limits::attention_batch);
  const auto& rule = call.is_varlen ? rules::attention_tokens : rules::attention_sequence;
  const int64_t largest = call.is_varlen ? limits::attention_tokens : limits::attention_sequence;
  check_limit(rule, "the query's number of tokens", query[rank - 3], 0, largest);
  check_limit(rule, "the key's number of tokens", key[rank - 3], 0, largest);
  if (query[rank - 3] > 0 && key[rank - 3] == 0) refuse(rules::attention_no_keys, kOp, both);
}

void check_dropout(const FlashAttention& call) {
  std::ostringstream dropout;
  dropout << "dropout is " << call.dropout;
  const std::string came = dropout.str();
  if (!(call.dropout >= 0 && call.dropout <= 1)) refuse(rules::attention_plugin_dropout, kOp, came);
  if (call.dropout == 1 && !call.is_test) refuse(rules::attention_keep_prob, kOp, came);
}

void check_ends(const char* name, const std::vector<int64_t>& ends, int64_t tokens) {
  const std::string came = std::string(name) + " is " + text(ends);
  if (ends.front() < 0 || !std::is_sorted(ends.begin(), ends.end())) refuse(rules::attention_lengths_order, kOp, came);
  if (ends.back() != tokens)
    refuse(rules::attention_lengths_total, kOp, came + " and the tensor has " + std::to_string(tokens) + " tokens");
}

void check_varlen(FlashAttention* call) {
  std::vector<int64_t>&q = call->query_ends, &kv = call->kv_ends;
  if (q.empty() || kv.empty())
    refuse(rules::attention_plugin_lengths_missing, kOp,
           std::string(q.empty() ? "actual_seq_q_len" : "actual_seq_kv_len") + " is missing");
  if (q.size() != kv.size())
    refuse(rules::attention_lengths_count, kOp,
           "actual_seq_q_len has " + std::to_string(q.size()) + " elements and actual_seq_kv_len has " +
               std::to_string(kv.size()));
  check_limit(rules::attention_sequences, "the number of sequences", static_cast<int64_t>(q.size()), 1,
              limits::attention_sequences);
  // Unused entries at the end are zeros: [2, 5, 9, 0, 0].
  while (q.size() > 1 && q.back() == 0 && kv.back() == 0) {
    q.pop_back();
    kv.pop_back();
  }
  check_ends("actual_seq_q_len", q, call->query.shape()[0]);
  check_ends("actual_seq_kv_len", kv, call->key.shape()[0]);
  for (size_t i = 0; i < q.size(); ++i) {
    const bool queries = q[i] > (i ? q[i - 1] : 0), keys = kv[i] > (i ? kv[i - 1] : 0);
    if (queries && !keys)
      refuse(rules::attention_no_keys, kOp,
             "sequence " + std::to_string(i) + " has queries but no keys (actual_seq_q_len " + text(q) +
                 ", actual_seq_kv_len " + text(kv) + ")");
  }
}

// With sequences of different lengths, a card computes wrong results for fully masked rows. In other layouts, it
// detects them.
void check_hidden_rows(const FlashAttention& call) {
  const paddle::Tensor mask = dense(*call.attn_mask);
  const bool* hidden = mask.data<bool>();
  const int64_t width = mask.shape()[1];
  for (size_t i = 0; i < call.query_ends.size(); ++i) {
    const int64_t queries = call.query_ends[i] - (i ? call.query_ends[i - 1] : 0);
    const int64_t keys = call.kv_ends[i] - (i ? call.kv_ends[i - 1] : 0);
    for (int64_t row = 0; row < queries; ++row) {
      const int64_t in_band = call.is_triangle_upper_mask ? std::min(keys, row + 1) : keys;
      const bool* begin = hidden + row * width;
      if (std::find(begin, begin + in_band, false) == begin + in_band)
        refuse(rules::attention_hidden_rows, kOp,
               "attn_mask masks all keys of query " + std::to_string(row) + " in sequence " + std::to_string(i));
    }
  }
}

void check_mask(const FlashAttention& call) {
  const paddle::Tensor& mask = *call.attn_mask;
  check_dtype(rules::attention_plugin_mask_dtype, kOp, {"attn_mask", mask},
              contract::dtypes::attention_plugin_mask_dtype);
  const Shape query = call.query.shape(), key = call.key.shape();
  std::vector<Shape> accepted;
  if (call.is_varlen) {
    accepted = {{longest(call.query_ends), longest(call.kv_ends)}};
  } else {
    const int64_t b = query[0], n = query[2], sq = query[1], skv = key[1];
    accepted = {{b, n, sq, skv}, {b, 1, sq, skv}, {1, 1, sq, skv}, {sq, skv}};
  }
  if (std::find(accepted.begin(), accepted.end(), mask.shape()) == accepted.end()) {
    const auto& rule = call.is_varlen ? rules::attention_mask_shape_varlen : rules::attention_mask_shape;
    refuse(rule, kOp,
           "attn_mask has shape " + text(mask.shape()) + " for query " + text(query) + " and key " + text(key));
  }
  if (call.is_varlen) check_hidden_rows(call);
}

}  // namespace

int64_t longest(const std::vector<int64_t>& ends) {
  int64_t length = ends.front();
  for (size_t i = 1; i < ends.size(); ++i) length = std::max(length, ends[i] - ends[i - 1]);
  return length;
}

void check(FlashAttention* call) {
  const bool masked = !call->causal && call->attn_mask;
  if (masked)
    check_places(kOp, {{"query", call->query},
                       {"key", call->key},
                       {"value", call->value},
                       {"attn_mask", *call->attn_mask}});
  else
    check_places(kOp, {{"query", call->query}, {"key", call->key}, {"value", call->value}});
  check_types(*call);
  check_shapes(*call);
  check_dropout(*call);
  if (call->causal && !call->is_varlen && call->query.shape()[1] != call->key.shape()[1])
    refuse(rules::attention_plugin_causal, kOp,
           "query has " + std::to_string(call->query.shape()[1]) + " positions and key " +
               std::to_string(call->key.shape()[1]));
  if (call->is_varlen) check_varlen(call);
  if (masked) check_mask(*call);
}

void check_seed(const paddle::Tensor& fixed_seed_offset) {
  if (fixed_seed_offset.dtype() == paddle::DataType::INT64 && fixed_seed_offset.numel() >= 2) return;
  refuse(rules::attention_plugin_seed, kOp,
         "fixed_seed_offset is " + text(fixed_seed_offset.dtype()) + " of shape " + text(fixed_seed_offset.shape()));
}

}  // namespace virtual_npu
