// flash_attention_npu, independent of its signature (see flash_attention.cc for both).
//
//   attention_score = dropout(softmax(query key^T / sqrt(D) + mask)) value
//
// Shapes: B batch, S sequence, T tokens of all sequences, N heads, D head size; q: query, kv: key and value.
//   dense   query [B, Sq, Nq, D], key and value [B, Skv, Nkv, D]
//   varlen  query [Tq, Nq, D],    key and value [Tkv, Nkv, D], and the cumulative lengths of the sequences
#pragma once
#include <cstdint>
#include <vector>

#include "paddle/phi/api/all.h"

namespace virtual_npu {

struct FlashAttention {
  const paddle::Tensor& query;
  const paddle::Tensor& key;
  const paddle::Tensor& value;
  const paddle::optional<paddle::Tensor>& attn_mask;  // bool, True = masked; ignored if causal
  std::vector<int64_t> query_ends, kv_ends;           // actual_seq_q_len, actual_seq_kv_len; empty: not given
  float dropout;
  bool causal;
  bool is_test;  // no dropout
  bool is_triangle_upper_mask;
  bool is_varlen;
};

// Throws InvalidArgument for unsupported arguments, and removes unused trailing sequences from the ends.
void check(FlashAttention* call);
void check_seed(const paddle::Tensor& fixed_seed_offset);

// The longest sequence, from cumulative lengths.
int64_t longest(const std::vector<int64_t>& ends);

// {attention_score, softmax_max, softmax_sum, softmax_out, seed, offset, numel}
std::vector<paddle::Tensor> forward(const FlashAttention& call,
                                    const paddle::optional<paddle::Tensor>& fixed_seed_offset);

// The tensors saved by the forward pass, and the incoming gradient.
struct FlashAttentionSaved {
  const paddle::Tensor& attention_score_grad;
  const paddle::Tensor& softmax_max;
  const paddle::Tensor& softmax_sum;
  const paddle::Tensor& attention_score;
  const paddle::Tensor& seed;
  const paddle::Tensor& offset;
};

// {query_grad, key_grad, value_grad}
std::vector<paddle::Tensor> backward(const FlashAttention& call, const FlashAttentionSaved& saved);

}  // namespace virtual_npu
