// One call of pf_flash_attention, checked and converted for the kernels.
#pragma once
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "ops/attention/attention_layout.h"
#include "ops/operator.h"

namespace paddle_fused::ops::flash_attention {

using OptionalTensor = paddle::optional<Tensor>;

constexpr char kOp[] = "pf_flash_attention";

// An optional input, or none if it is empty.
inline OptionalTensor given(const OptionalTensor& x) { return x && x->numel() > 0 ? x : OptionalTensor(); }

// Inputs and attributes as registered in flash_attention.cc.
struct Call {
  Tensor query, key, value;
  OptionalTensor bias, mask, query_ends, key_ends;
  std::string layout;
  int64_t num_heads;
  float scale, dropout;
  std::vector<int64_t> bands;
  std::string align;
};

// Everything that the kernels' problem points to. Not movable, because the problem has pointers into it.
class Problem {
 public:
  explicit Problem(const Call& call);  // rejects calls that the kernels do not support
  Problem(const Problem&) = delete;

  const AttentionLayout& layout() const { return layout_; }
  const AttentionSizes& sizes() const { return sizes_; }
  bool empty() const;              // no queries or no keys: the output and the gradients are zero
  bool covers_all_tokens() const;  // false: the tensors have tokens after the last sequence

  kernels::AttentionProblem kernel{};
  Tensor query, key, value;  // with a dense last dimension

 private:
  void read_sequences(const Call& call);
  void read_bands(const Call& call);
  void read_bias(const Tensor& bias);
  void read_mask(const Tensor& mask);

  const AttentionLayout& layout_;
  const AttentionSizes sizes_;
  std::vector<int64_t> query_ends_, kv_ends_;
  std::vector<kernels::AttentionBand> bands_;
  Tensor bias_, mask_;
};

// The tensor itself if its last dimension is dense, otherwise a dense copy.
Tensor with_dense_rows(const Tensor& x);

// A tensor of the layout as a kernel input. Merged layouts have heads of `head_dim`.
kernels::AttentionInput input_of(const AttentionLayout& layout, const Tensor& x, int64_t head_dim);
kernels::AttentionOutput output_of(const AttentionLayout& layout, Tensor* x, int64_t head_dim);
kernels::AttentionBiasGrad bias_grad_of(Tensor* bias_grad);  // nullptr: not needed
kernels::SoftmaxStatistics statistics_of(const Problem& problem, const Tensor& max, const Tensor& sum);

}  // namespace paddle_fused::ops::flash_attention
