// pf_flash_attention: kernels/attention as an operator, with the layouts of CANN's FlashAttention.
//
//   S = scale * (Q K^T + bias)     P = softmax of S over the unmasked keys     out = dropout(P) V
//
// Inputs
//   query, key, value   in `layout`; key and value have Nkv heads (N a multiple of Nkv), value's head size is Dv <= D
//   bias                [B, N, Sq, Skv], where B, N and Sq may be 1; not for TND. CANN's pse (pse_type 1)
//   mask                bool, True means masked: [B or 1, N or 1, Sq, Skv] or [Sq, Skv]; for TND [longest Sq, longest
//                       Skv], shared by the sequences
//   query_ends, key_ends   int64 [sequences], for TND: cumulative lengths without the leading 0. Tokens after the
// last                       end belong to no sequence; their output is zero
//   seed                int64 [2] on any device, required if dropout > 0: seed and offset of the random numbers. The
//                       operator draws none, so it is a function of its arguments and programs may merge equal calls
//   An empty optional input counts as missing.
// Attributes
//   layout              BSH, SBH, BSND, BNSD, TND
//   num_heads           the query's, for BSH and SBH
//   scale
//   dropout             a probability
//   bands               low, high and prefix of each sequence (batch entry), or one for all: query i attends to the
// keys                       i + d + low <= j <= i + d + high and the keys j < prefix, unless the mask masks them.
//                       Numbers beyond any sequence mean no bound
//   align               top_left: d = 0. bottom_right: d = Skv - Sq of the sequence, aligning the last query and key
// Outputs
//   out                 query's layout with head size Dv
//   softmax_max, softmax_sum   float32 [B, N, Sq, 8], or [T, N, 8]; without gradient
//   seed_offset         int64 [2], the seed and offset that dropout used, or zeros
// The gradient operator returns the gradients of query, key, value and, if present, bias.
//
// pf_flash_attention_gradient: the gradients of query, key and value for given out and statistics. These may belong
// to rows for which key and value are only a part (ring attention). Layout BSND, or TND with query_ends and key_ends.
#include "ops/attention/flash_attention.h"

#include <algorithm>

namespace paddle_fused::ops::flash_attention {
namespace {

// An uninitialized output, or zeros if the kernels do not write all of it.
Tensor output_like(const Shape& shape, const Tensor& x, DataType dtype, bool written) {
  return written ? paddle::empty(shape, dtype, x.place()) : paddle::zeros(shape, dtype, x.place());
}

// The seed on the query's device, or zeros without dropout.
Tensor seed_offset_of(const OptionalTensor& seed, const Tensor& query, float dropout) {
  Tensor seed_offset = paddle::zeros({2}, DataType::INT64, query.place());
  if (dropout == 0) return seed_offset;
  if (!seed) refuse(kOp, "dropout is " + std::to_string(dropout) + ", which requires seed: int64 of shape [2].");
  if (seed->dtype() != DataType::INT64 || seed->shape() != Shape{2})
    refuse(kOp, "seed is " + text(seed->dtype()) + " of shape " + text(seed->shape()) + "; accepted: int64 of shape [2].");
  const bool on_host = seed->place().GetType() == phi::AllocationType::CPU;
  const Tensor host = dense(on_host ? *seed : seed->copy_to(phi::CPUPlace(), true));
  std::copy_n(host.data<int64_t>(), 2, seed_offset.data<int64_t>());
  return seed_offset;
}

void set_seed_offset(const Tensor& seed_offset, kernels::AttentionProblem* problem) {
  problem->seed = static_cast<uint64_t>(seed_offset.data<int64_t>()[0]);
  problem->offset = static_cast<uint64_t>(seed_offset.data<int64_t>()[1]);
}

std::vector<Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                            const OptionalTensor& mask, const OptionalTensor& query_ends,
                            const OptionalTensor& key_ends, const OptionalTensor& seed, const std::string& layout,
                            int64_t num_heads, float scale, float dropout, const std::vector<int64_t>& bands,
                            const std::string& align) {
  Problem problem({query, key, value, given(bias), given(mask), given(query_ends), given(key_ends), layout, num_heads,
                   scale, dropout, bands, align});
  const HostCall host_call(kOp, {query, key, value});
  const AttentionSizes& s = problem.sizes();
  const bool written = !problem.empty() && problem.covers_all_tokens();
  Tensor out = output_like(attention_out_shape(problem.layout(), s, query.shape()), query, query.dtype(), written);
  Tensor max = output_like(attention_statistics_shape(problem.layout(), s), query, DataType::FLOAT32, written);
  Tensor sum = output_like(attention_statistics_shape(problem.layout(), s), query, DataType::FLOAT32, written);
  const Tensor seed_offset = seed_offset_of(given(seed), query, dropout);
  if (!problem.empty()) {
    set_seed_offset(seed_offset, &problem.kernel);
    kernels::attention_forward(problem.kernel, input_of(problem.layout(), problem.query, s.head_dim),
                               input_of(problem.layout(), problem.key, s.head_dim),
                               input_of(problem.layout(), problem.value, s.value_head_dim),
                               output_of(problem.layout(), &out, s.value_head_dim), statistics_of(problem, max, sum));
  }
  return {out, max, sum, seed_offset};
}

void check_shape(const char* name, const Tensor& x, const Shape& expected) {
  if (x.shape() != expected)
    refuse(kOp, std::string(name) + " has shape " + text(x.shape()) + "; accepted: " + text(expected) + ".");
}

// `maybe_bias` is not optional here, because the gradient of an empty bias still has a shape.
std::vector<Tensor> backward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& maybe_bias,
                             const OptionalTensor& mask, const OptionalTensor& query_ends,
                             const OptionalTensor& key_ends, const Tensor& out, const Tensor& softmax_max,
                             const Tensor& softmax_sum, const Tensor& seed_offset, const Tensor& out_grad,
                             const std::string& layout, int64_t num_heads, float scale, float dropout,
                             const std::vector<int64_t>& bands, const std::string& align) {
  if (!out_grad.defined())
    refuse(kOp, "the loss depends on the softmax statistics but not on out; only out has a gradient. Detach the "
                "other outputs.");
  const OptionalTensor bias = maybe_bias.defined() ? given(maybe_bias) : OptionalTensor();
  Problem problem({query, key, value, given(bias), given(mask), given(query_ends), given(key_ends), layout, num_heads,
                   scale, dropout, bands, align});
  check_places(kOp, {{"query", query}, {"the gradient of out", out_grad}});
  check_same_dtype(kOp, {{"query", query}, {"the gradient of out", out_grad}});
  const AttentionSizes& s = problem.sizes();
  check_shape("the gradient of out", out_grad, attention_out_shape(problem.layout(), s, query.shape()));
  const HostCall host_call("pf_flash_attention_grad", {query, key, value});
  const bool written = !problem.empty() && problem.covers_all_tokens();
  Tensor query_grad = output_like(query.shape(), query, query.dtype(), written);
  Tensor key_grad = output_like(key.shape(), query, query.dtype(), written);
  Tensor value_grad = output_like(value.shape(), query, query.dtype(), written);
  Tensor bias_grad = maybe_bias.defined() ? output_like(maybe_bias.shape(), query, query.dtype(), written) : Tensor();
  if (!problem.empty()) {
    set_seed_offset(seed_offset, &problem.kernel);
    const Tensor dense_out = with_dense_rows(out), dense_out_grad = with_dense_rows(out_grad);
    const AttentionLayout& l = problem.layout();
    kernels::attention_backward(
        problem.kernel, input_of(l, problem.query, s.head_dim), input_of(l, problem.key, s.head_dim),
        input_of(l, problem.value, s.value_head_dim), input_of(l, dense_out, s.value_head_dim),
        input_of(l, dense_out_grad, s.value_head_dim), statistics_of(problem, softmax_max, softmax_sum),
        output_of(l, &query_grad, s.head_dim), output_of(l, &key_grad, s.head_dim),
        output_of(l, &value_grad, s.value_head_dim), bias_grad_of(bias ? &bias_grad : nullptr));
  }
  return {query_grad, key_grad, value_grad, bias_grad};
}

std::vector<Tensor> gradient(const Tensor& query, const Tensor& key, const Tensor& value,
                             const OptionalTensor& query_ends, const OptionalTensor& key_ends, const Tensor& out,
                             const Tensor& softmax_max, const Tensor& softmax_sum, const Tensor& out_grad, float scale,
                             const std::vector<int64_t>& bands) {
  const std::string layout = given(query_ends) ? "TND" : "BSND";
  const AttentionLayout& found = *find_attention_layout(layout);
  for (const Argument& argument : {Argument{"query", query}, Argument{"key", key}, Argument{"value", value}})
    if (argument.tensor.shape().size() != found.rank)
      refuse(kOp, std::string(argument.name) + " has shape " + text(argument.tensor.shape()) + "; accepted: layout " +
                      layout + ".");
  check_places(kOp, {{"query", query}, {"out", out}, {"softmax_max", softmax_max}, {"softmax_sum", softmax_sum}});
  check_same_dtype(kOp, {{"query", query}, {"out", out}});
  const AttentionSizes sizes = attention_sizes(found, 0, query.shape(), key.shape(), value.shape());
  check_shape("out", out, attention_out_shape(found, sizes, query.shape()));
  for (const Argument& argument : {Argument{"softmax_max", softmax_max}, Argument{"softmax_sum", softmax_sum}}) {
    check_shape(argument.name, argument.tensor, attention_statistics_shape(found, sizes));
    if (argument.tensor.dtype() != DataType::FLOAT32)
      refuse(kOp, std::string(argument.name) + " is " + text(argument.tensor.dtype()) + "; accepted: float32.");
  }
  std::vector<Tensor> gradients =
      backward(query, key, value, Tensor(), OptionalTensor(), query_ends, key_ends, out, dense(softmax_max),
               dense(softmax_sum), paddle::zeros({2}, DataType::INT64, query.place()), out_grad, layout, 0, scale, 0,
               bands, "top_left");
  gradients.resize(3);
  return gradients;
}

// Paddle 3.3.1 terminates the process if this throws while a program is captured. Invalid inputs therefore get
// arbitrary shapes and are rejected at run time.
std::vector<Shape> infer_shapes(const Shape& query, const Shape& key, const Shape& value, const std::string& layout,
                                int64_t num_heads) {
  const AttentionLayout* found = find_attention_layout(layout);
  if (!found || query.size() != found->rank || key.size() != found->rank || value.size() != found->rank)
    return {query, {-1, -1, kStatisticsCopies}, {-1, -1, kStatisticsCopies}, {2}};
  const AttentionSizes sizes = attention_sizes(*found, num_heads, query, key, value);
  const Shape statistics = attention_statistics_shape(*found, sizes);
  return {attention_out_shape(*found, sizes, query), statistics, statistics, {2}};
}
std::vector<DataType> infer_dtypes(const DataType& query) {
  return {query, DataType::FLOAT32, DataType::FLOAT32, DataType::INT64};
}
std::vector<Shape> infer_gradient_shapes(const Shape& query, const Shape& key, const Shape& value, const Shape& bias) {
  return {query, key, value, bias};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& query) { return {query, query, query, query}; }
std::vector<Shape> infer_three_shapes(const Shape& query, const Shape& key, const Shape& value) {
  return {query, key, value};
}
std::vector<DataType> infer_three_dtypes(const DataType& query) { return {query, query, query}; }

std::vector<std::string> attributes() {
  return {"layout: std::string", "num_heads: int64_t",          "scale: float",
          "dropout: float",      "bands: std::vector<int64_t>", "align: std::string"};
}

}  // namespace
}  // namespace paddle_fused::ops::flash_attention

PD_BUILD_OP(pf_flash_attention)
    .Inputs({"query", "key", "value", paddle::Optional("bias"), paddle::Optional("mask"),
             paddle::Optional("query_ends"), paddle::Optional("key_ends"), paddle::Optional("seed")})
    .Outputs({"out", "softmax_max", "softmax_sum", "seed_offset"})
    .Attrs(paddle_fused::ops::flash_attention::attributes())
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::flash_attention::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::flash_attention::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::flash_attention::infer_dtypes));

PD_BUILD_GRAD_OP(pf_flash_attention)
    .Inputs({"query", "key", "value", paddle::Optional("bias"), paddle::Optional("mask"),
             paddle::Optional("query_ends"), paddle::Optional("key_ends"), "out", "softmax_max", "softmax_sum",
             "seed_offset", paddle::Grad("out")})
    .Outputs({paddle::Grad("query"), paddle::Grad("key"), paddle::Grad("value"),
              paddle::Grad(paddle::Optional("bias"))})
    .Attrs(paddle_fused::ops::flash_attention::attributes())
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::flash_attention::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::flash_attention::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::flash_attention::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_flash_attention, "query", "out");

PD_BUILD_OP(pf_flash_attention_gradient)
    .Inputs({"query", "key", "value", paddle::Optional("query_ends"), paddle::Optional("key_ends"), "out",
             "softmax_max", "softmax_sum", "out_grad"})
    .Outputs({"query_grad", "key_grad", "value_grad"})
    .Attrs({"scale: float", "bands: std::vector<int64_t>"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::flash_attention::gradient))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::flash_attention::infer_three_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::flash_attention::infer_three_dtypes));
