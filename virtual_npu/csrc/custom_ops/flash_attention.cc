// Registers flash_attention_npu with one of its two signatures in releases of paddle-custom-npu. The environment
// variable VIRTUAL_NPU_FLASH_ATTENTION_ABI selects it when the plugin is loaded:
//
//   tensor13 (default)  sequence lengths are two optional int32 tensors   (2025-01-09 and later)
//   v10                 no sequence lengths                               (2024)
//
// Both have the outputs attention_score, softmax_max, softmax_sum, softmax_out, seed, offset and numel. softmax_out
// is an unused element, regardless of return_softmax, and numel counts the elements of the dropout mask. Two defects
// of the
// upstream operator are not reproduced: dropout is applied in the forward pass as well, with the mask of the backward
// pass, and numel counts Sq * Skv rather than Sq * Sq per head.
#include "custom_ops/flash_attention.h"

#include <cstdlib>
#include <string>

#include "framework/paddle_release.h"
#include "custom_ops/checks.h"
#include "dry/known_values.h"
#include "observe/operator_call.h"

namespace virtual_npu {
namespace {

using paddle::DataType;
using paddle::Tensor;
using OptionalTensor = paddle::optional<Tensor>;
using Shape = std::vector<int64_t>;

const std::string& chosen_form() {
  static const std::string form = [] {
    const char* variable = std::getenv("VIRTUAL_NPU_FLASH_ATTENTION_ABI");
    return std::string(variable && *variable ? variable : "tensor13");
  }();
  return form;
}

// The plugin is loaded inside `import paddle`, where an error would end the program. It is therefore raised by the
// call.
void check_form() {
  const std::string& form = chosen_form();
  if (form == "tensor13" || form == "v10") return;
  refuse("flash_attention_npu",
         "VIRTUAL_NPU_FLASH_ATTENTION_ABI is " + form + "; accepted: tensor13 (default), v10.");
}

std::vector<Tensor> checked_forward(FlashAttention call, const OptionalTensor& fixed_seed_offset) {
  check_form();
  check(&call);
  if (fixed_seed_offset) check_seed(*fixed_seed_offset);
  OperatorCall record("flash_attention_npu", call.query.dtype(), {&call.query, &call.key, &call.value});
  return record.returns(forward(call, fixed_seed_offset));
}
std::vector<Tensor> checked_backward(FlashAttention call, const FlashAttentionSaved& saved) {
  check(&call);
  if (!saved.attention_score_grad.defined())
    refuse("flash_attention_npu",
           "the loss depends on the softmax statistics but not on attention_score; only attention_score has a "
           "gradient. Detach the other outputs.");
  check_gradient("flash_attention_npu", {"attention_score", saved.attention_score},
                 {"the gradient of attention_score", saved.attention_score_grad});
  OperatorCall record("flash_attention_npu_grad", call.query.dtype(), {&call.query, &call.key, &call.value});
  return record.returns(backward(call, saved));
}

std::vector<int64_t> read_ends(const char* name, const OptionalTensor& ends) {
  if (!ends) return {};
  if (ends->dtype() != contract::dtypes::attention_plugin_lengths[0] || ends->shape().size() != 1)
    refuse(contract::rules::attention_plugin_lengths, "flash_attention_npu",
           std::string(name) + " is " + text(ends->dtype()) + " of shape " + text(ends->shape()));
  const Tensor values = dense(*ends);
  dry::check_known("flash_attention_npu", name, *static_cast<phi::DenseTensor*>(values.impl().get()));
  return {values.data<int>(), values.data<int>() + values.numel()};
}

// ---- tensor13
std::vector<Tensor> forward_tensor13(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& fixed_seed_offset, const OptionalTensor& attn_mask,
                                     const OptionalTensor& actual_seq_q_len, const OptionalTensor& actual_seq_kv_len,
                                     float dropout, bool causal, bool return_softmax, bool is_test,
                                     bool is_triangle_upper_mask, bool is_varlen) {
  return checked_forward({query, key, value, attn_mask, read_ends("actual_seq_q_len", actual_seq_q_len),
                          read_ends("actual_seq_kv_len", actual_seq_kv_len), dropout, causal, is_test,
                          is_triangle_upper_mask, is_varlen},
                         fixed_seed_offset);
}
std::vector<Tensor> backward_tensor13(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad,
                                      const OptionalTensor& attn_mask, const Tensor& softmax_max,
                                      const Tensor& softmax_sum, const Tensor& softmax_out,
                                      const Tensor& attention_score, const Tensor& seed, const Tensor& offset,
                                      const Tensor& numel, const OptionalTensor& actual_seq_q_len,
                                      const OptionalTensor& actual_seq_kv_len, float dropout, bool causal, bool is_test,
                                      bool is_triangle_upper_mask, bool is_varlen) {
  return checked_backward({query, key, value, attn_mask, read_ends("actual_seq_q_len", actual_seq_q_len),
                           read_ends("actual_seq_kv_len", actual_seq_kv_len), dropout, causal, is_test,
                           is_triangle_upper_mask, is_varlen},
                          {grad, softmax_max, softmax_sum, attention_score, seed, offset});
}

// ---- v10
std::vector<Tensor> forward_v10(const Tensor& query, const Tensor& key, const Tensor& value,
                                const OptionalTensor& fixed_seed_offset, const OptionalTensor& attn_mask, float dropout,
                                bool causal, bool return_softmax, bool is_test, bool is_triangle_upper_mask) {
  return checked_forward(
      {query, key, value, attn_mask, {}, {}, dropout, causal, is_test, is_triangle_upper_mask, false},
      fixed_seed_offset);
}
std::vector<Tensor> backward_v10(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad,
                                 const OptionalTensor& attn_mask, const Tensor& softmax_max, const Tensor& softmax_sum,
                                 const Tensor& softmax_out, const Tensor& attention_score, const Tensor& seed,
                                 const Tensor& offset, const Tensor& numel, float dropout, bool causal, bool is_test,
                                 bool is_triangle_upper_mask) {
  return checked_backward(
      {query, key, value, attn_mask, {}, {}, dropout, causal, is_test, is_triangle_upper_mask, false},
      {grad, softmax_max, softmax_sum, attention_score, seed, offset});
}

// ---- shapes and dtypes, the same for both. Ranks other than 3 and 4 are rejected at run time.
std::vector<Shape> forward_shapes(const Shape& query, const Shape& key, const Shape& value) {
  Shape statistics = query;
  constexpr int64_t copies = contract::limits::attention_statistics;
  if (query.size() == 4) statistics = {query[0], query[2], query[1], copies};
  if (query.size() == 3) statistics = {query[0], query[1], copies};
  return {query, statistics, statistics, {1}, {1}, {1}, {1}};
}
std::vector<DataType> forward_dtypes(const DataType& query, const DataType& key, const DataType& value) {
  return {query,           DataType::FLOAT32, DataType::FLOAT32, query,
          DataType::INT64, DataType::INT64,   DataType::INT64};
}
std::vector<Shape> backward_shapes(const Shape& query, const Shape& key, const Shape& value) {
  return {query, key, value};
}
std::vector<DataType> backward_dtypes(const DataType& query, const DataType& key, const DataType& value) {
  return {query, key, value};
}

// ---- registration
using Names = std::vector<std::string>;

Names joined(Names first, const Names& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

paddle::OpMetaInfoBuilder register_forward() {
  const std::string& form = chosen_form();
  const Names tensors = {"query", "key", "value", paddle::Optional("fixed_seed_offset"), paddle::Optional("attn_mask")};
  const Names lengths = {paddle::Optional("actual_seq_q_len"), paddle::Optional("actual_seq_kv_len")};
  const Names flags = {"dropout: float", "causal: bool", "return_softmax: bool", "is_test: bool",
                       "is_triangle_upper_mask: bool"};
  auto builder = paddle::OpMetaInfoBuilder("flash_attention_npu", 0);
  if (form == "v10") {
    builder.Inputs(Names(tensors)).Attrs(Names(flags)).SetKernelFn(PF_KERNEL(forward_v10));
  } else {
    builder.Inputs(joined(tensors, lengths))
        .Attrs(joined(flags, {"is_varlen: bool"}))
        .SetKernelFn(PF_KERNEL(forward_tensor13));
  }
  builder
      .Outputs({"attention_score", "softmax_max", "softmax_sum", "softmax_out", "seed", "offset", "numel"})
      .SetInferShapeFn(PD_INFER_SHAPE(forward_shapes))
      .SetInferDtypeFn(PD_INFER_DTYPE(forward_dtypes));
  return builder;
}

// Unlike upstream, the gradient also declares is_test. Otherwise it would not know that nothing was dropped.
paddle::OpMetaInfoBuilder register_backward() {
  const std::string& form = chosen_form();
  const Names tensors = {"query", "key", "value", paddle::Grad("attention_score"), paddle::Optional("attn_mask"),
                         "softmax_max", "softmax_sum", "softmax_out", "attention_score", "seed", "offset", "numel"};
  const Names lengths = {paddle::Optional("actual_seq_q_len"), paddle::Optional("actual_seq_kv_len")};
  const Names flags = {"dropout: float", "causal: bool", "is_test: bool", "is_triangle_upper_mask: bool"};
  auto builder = paddle::OpMetaInfoBuilder("flash_attention_npu", 1);
  if (form == "v10") {
    builder.Inputs(Names(tensors)).Attrs(Names(flags)).SetKernelFn(PF_KERNEL(backward_v10));
  } else {
    builder.Inputs(joined(tensors, lengths))
        .Attrs(joined(flags, {"is_varlen: bool"}))
        .SetKernelFn(PF_KERNEL(backward_tensor13));
  }
  builder.Outputs({paddle::Grad("query"), paddle::Grad("key"), paddle::Grad("value")})
      .SetInferShapeFn(PD_INFER_SHAPE(backward_shapes))
      .SetInferDtypeFn(PD_INFER_DTYPE(backward_dtypes));
  return builder;
}

const paddle::OpMetaInfoBuilder kForward = register_forward();
const paddle::OpMetaInfoBuilder kBackward = register_backward();

}  // namespace
}  // namespace virtual_npu
