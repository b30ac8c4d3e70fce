// The contract of aclnnFlashAttentionScore and aclnnFlashAttentionVarLenScore as flash_attention_npu uses them.
#include <algorithm>
#include <string>

#include "virtual_npu/custom_ops/checks.h"
#include "virtual_npu/custom_ops/flash_attention.h"
#include "virtual_npu/element_type.h"

namespace virtual_npu {
namespace {

constexpr char kOp[] = "flash_attention_npu";
constexpr int64_t kMaxBatch = 2 << 20, kMaxSequences = 2 << 10, kMaxTokens = 1 << 20;
constexpr int64_t kMaxHeads = 256, kMaxHeadDim = 512;

void check_types(const FlashAttention& call) {
  const Argument arguments[] = {{"query", call.query}, {"key", call.key}, {"value", call.value}};
  for (const Argument& argument : arguments) {
    const auto dtype = argument.tensor.dtype();
    if (is_16_bit_float(dtype)) continue;
    refuse(kOp,
           std::string("The ") + argument.name + " tensor dtype must be bfloat16 or float16, but got " + text(dtype) +
               ". Cast it with tensor.astype.",
           CannError::kParamInvalid);
  }
  check_same_dtype(kOp, {arguments[0], arguments[1], arguments[2]});
}

void check_limit(const char* what, int64_t size, int64_t smallest, int64_t largest) {
  if (size >= smallest && size <= largest) return;
  refuse(kOp,
         std::string(what) + " is " + std::to_string(size) + "; accepted: " + std::to_string(smallest) + " to " +
             std::to_string(largest) + ".",
         CannError::kTiling);
}

void check_shapes(const FlashAttention& call) {
  const auto query = call.query.shape(), key = call.key.shape(), value = call.value.shape();
  const size_t rank = call.is_varlen ? 3 : 4;
  const std::string layout = call.is_varlen ? "[T, N, D], as is_varlen is True" : "[B, S, N, D], as is_varlen is False";
  for (const auto& [name, shape] : {std::pair("query", query), std::pair("key", key), std::pair("value", value)}) {
    if (shape.size() == rank) continue;
    refuse(kOp, std::string(name) + " has shape " + text(shape) + "; accepted: " + layout + ".",
           CannError::kParamInvalid);
  }
  if (key != value)
    refuse(kOp, "key has shape " + text(key) + " and value has shape " + text(value) + "; they must be equal.",
           CannError::kTiling);
  const std::string both = "query has shape " + text(query) + " and key has shape " + text(key);
  if (query[rank - 1] != key[rank - 1]) refuse(kOp, both + "; the head sizes must be equal.", CannError::kTiling);
  if (!call.is_varlen && query[0] != key[0]) refuse(kOp, both + "; the batch sizes must be equal.", CannError::kTiling);
  check_limit("the head size", query[rank - 1], 1, kMaxHeadDim);
  check_limit("the number of query heads", query[rank - 2], 1, kMaxHeads);
  check_limit("the number of key heads", key[rank - 2], 1, kMaxHeads);
  if (query[rank - 2] % key[rank - 2] != 0)
    refuse(kOp, both + "; the number of query heads (" + std::to_string(query[rank - 2]) +
                    ") must be a multiple of the number of key heads (" + std::to_string(key[rank - 2]) + ").",
           CannError::kTiling);
  if (!call.is_varlen) check_limit("the batch size", query[0], 0, kMaxBatch);
  check_limit("the query's number of tokens", query[rank - 3], 0, kMaxTokens);
  check_limit("the key's number of tokens", key[rank - 3], 0, kMaxTokens);
  if (query[rank - 3] > 0 && key[rank - 3] == 0)
    refuse(kOp, both + "; queries need at least one key.", CannError::kTiling);
}

void check_ends(const char* name, const std::vector<int64_t>& ends, int64_t tokens) {
  const bool ordered = ends.front() >= 0 && std::is_sorted(ends.begin(), ends.end());
  if (!ordered)
    refuse(kOp, std::string(name) + " is " + text(ends) +
                    "; it must hold cumulative lengths, which never decrease (for lengths 3, 2: [3, 5]).",
           CannError::kParamInvalid);
  if (ends.back() != tokens)
    refuse(kOp, std::string(name) + " is " + text(ends) + ", but the tensor has " + std::to_string(tokens) +
                    " tokens; its last element must be the number of tokens.",
           CannError::kParamInvalid);
}

void check_varlen(FlashAttention* call) {
  std::vector<int64_t>&q = call->query_ends, &kv = call->kv_ends;
  if (q.empty() || kv.empty())
    refuse(kOp, "When is_varlen is True, actual_seq_q_len and actual_seq_kv_len must be provided.");
  if (q.size() != kv.size())
    refuse(kOp, "actual_seq_q_len has " + std::to_string(q.size()) + " elements and actual_seq_kv_len has " +
                    std::to_string(kv.size()) + "; both need one for each sequence.",
           CannError::kParamInvalid);
  check_limit("the number of sequences", static_cast<int64_t>(q.size()), 1, kMaxSequences);
  // Places for sequences that are not there are filled with zeros: [2, 5, 9, 0, 0].
  while (q.size() > 1 && q.back() == 0 && kv.back() == 0) {
    q.pop_back();
    kv.pop_back();
  }
  check_ends("actual_seq_q_len", q, call->query.shape()[0]);
  check_ends("actual_seq_kv_len", kv, call->key.shape()[0]);
  for (size_t i = 0; i < q.size(); ++i) {
    const bool queries = q[i] > (i ? q[i - 1] : 0), keys = kv[i] > (i ? kv[i - 1] : 0);
    if (queries && !keys)
      refuse(kOp, "sequence " + std::to_string(i) + " has queries but no keys (actual_seq_q_len " + text(q) +
                      ", actual_seq_kv_len " + text(kv) + "); remove it.",
             CannError::kTiling);
  }
}

void check_mask(const FlashAttention& call) {
  const paddle::Tensor& mask = *call.attn_mask;
  if (mask.dtype() != paddle::DataType::BOOL)
    refuse(kOp, "The mask tensor dtype must be bool, but got " + text(mask.dtype()) +
                    ". True hides a key: for an additive mask use (mask != 0).",
           CannError::kParamInvalid);
  const auto query = call.query.shape(), key = call.key.shape();
  std::vector<std::vector<int64_t>> accepted;
  if (call.is_varlen) {
    accepted = {{longest(call.query_ends), longest(call.kv_ends)}};
  } else {
    const int64_t b = query[0], n = query[2], sq = query[1], skv = key[1];
    accepted = {{b, n, sq, skv}, {b, 1, sq, skv}, {1, 1, sq, skv}, {sq, skv}};
  }
  if (std::find(accepted.begin(), accepted.end(), mask.shape()) != accepted.end()) return;
  std::string shapes;
  for (const auto& shape : accepted) shapes += (shapes.empty() ? "" : ", ") + text(shape);
  refuse(kOp, "attn_mask has shape " + text(mask.shape()) + "; accepted for these tensors: " + shapes + ".",
         CannError::kTiling);
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
  if (!(call->dropout >= 0 && call->dropout <= 1))
    refuse(kOp, "The dropout value must be in range of [0, 1], but got " + std::to_string(call->dropout) + ".",
           CannError::kParamInvalid);
  if (call->causal && !call->is_varlen && call->query.shape()[1] != call->key.shape()[1])
    refuse(kOp, "causal is set while query has " + std::to_string(call->query.shape()[1]) + " positions and key " +
                    std::to_string(call->key.shape()[1]) +
                    "; the operator makes a mask of [Sq, Sq] for causal, so both must have as many. Pass the mask "
                    "itself as attn_mask (True hides a key).",
           CannError::kTiling);
  if (call->is_varlen) check_varlen(call);
  if (masked) check_mask(*call);
}

void check_seed(const paddle::Tensor& fixed_seed_offset) {
  if (fixed_seed_offset.dtype() == paddle::DataType::INT64 && fixed_seed_offset.numel() >= 2) return;
  refuse(kOp, "fixed_seed_offset is " + text(fixed_seed_offset.dtype()) + " of shape " +
                  text(fixed_seed_offset.shape()) +
                  "; accepted: int64 with two elements, the seed and the offset.");
}

}  // namespace virtual_npu
