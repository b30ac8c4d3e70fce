// pf_moe_token_permute(tokens, indices; num_out_tokens) -> (permuted, sorted_indices): kernels/moe as an operator.
//   tokens [T, H], indices [T, K] or [T] int32 or int64 -> permuted [M, H], sorted_indices [T * K] int32
// num_out_tokens: 0 keeps all T * K rows, n > 0 the first n, n < 0 all except the last -n.
#include <algorithm>

#include "kernels/indexing/moe.h"
#include "ops/operator.h"

namespace paddle_fused::ops::moe_token_permute {
namespace {

constexpr char kOp[] = "pf_moe_token_permute";

void check_shapes(const Shape& tokens, const Shape& indices) {
  const bool ranks = tokens.size() == 2 && (indices.size() == 1 || (indices.size() == 2 && indices[1] > 0));
  if (ranks && tokens[0] == indices[0]) return;
  refuse(kOp, "tokens have shape " + text(tokens) + " and indices " + text(indices) +
                  "; accepted: tokens [T, H] and indices [T, K] or [T].");
}

// -1 if a size is unknown.
int64_t entries(const Shape& indices) {
  int64_t product = 1;
  for (int64_t size : indices) {
    if (size < 0) return -1;
    product *= size;
  }
  return product;
}

int64_t kept(int64_t entries, int64_t num_out_tokens) {
  if (entries < 0) return -1;
  return num_out_tokens > 0 ? std::min(entries, num_out_tokens) : std::max<int64_t>(0, entries + num_out_tokens);
}

kernels::MoeShape kernel_shape(const Shape& indices, int64_t kept, int64_t width) {
  return {indices[0], indices.size() == 1 ? 1 : indices[1], kept, width};
}

template <typename Index>
void fill_places(const Tensor& indices, Tensor* sorted) {
  const Index* experts = indices.data<Index>();
  const int64_t wrong = kernels::moe_places(experts, indices.numel(), sorted->data<int32_t>());
  if (wrong < indices.numel())
    refuse(kOp, "index " + std::to_string(experts[wrong]) + " is at position " + std::to_string(wrong) +
                    "; accepted: at least 0 and below " + std::to_string(kernels::kMoeExpertLimit) + ".");
}

std::vector<Tensor> forward(const Tensor& tokens, const Tensor& indices, int64_t num_out_tokens) {
  check_places(kOp, {{"tokens", tokens}, {"indices", indices}});
  check_float(kOp, {"tokens", tokens});
  const bool narrow = indices.dtype() == DataType::INT32;
  if (!narrow && indices.dtype() != DataType::INT64)
    refuse(kOp, "indices are " + text(indices.dtype()) + "; accepted: int32, int64. Cast them with tensor.astype.");
  check_shapes(tokens.shape(), indices.shape());
  if (indices.numel() >= kernels::kMoeExpertLimit)
    refuse(kOp, "there are " + std::to_string(indices.numel()) + " indices; accepted: fewer than " +
                    std::to_string(kernels::kMoeExpertLimit) + ". Split the tokens.");
  const HostCall call(kOp, tokens);
  const Tensor rows = dense(tokens), experts = dense(indices);
  const auto shape = kernel_shape(indices.shape(), kept(indices.numel(), num_out_tokens), tokens.shape()[1]);
  Tensor sorted = paddle::empty({indices.numel()}, DataType::INT32, tokens.place());
  Tensor permuted = paddle::empty({shape.kept, shape.width}, tokens.dtype(), tokens.place());
  if (indices.numel() > 0) {
    if (narrow)
      fill_places<int32_t>(experts, &sorted);
    else
      fill_places<int64_t>(experts, &sorted);
  }
  if (permuted.numel() > 0)
    kernels::moe_permute(element_type(tokens.dtype()), shape, rows.data(), sorted.data<int32_t>(), permuted.data());
  return {permuted, sorted};
}

// dtokens[t] = sum over k of dpermuted[sorted_indices[t * K + k]], without the dropped rows.
std::vector<Tensor> backward(const Tensor& dpermuted, const Tensor& indices, const Tensor& sorted,
                             int64_t num_out_tokens) {
  if (!dpermuted.defined()) refuse(kOp, "the loss depends only on sorted_indices, which has no gradient.");
  const Argument gradient_argument{"the gradient of permuted", dpermuted};
  check_places(kOp, {gradient_argument, {"sorted_indices", sorted}});
  check_float(kOp, gradient_argument);
  const int64_t rows = kept(sorted.numel(), num_out_tokens);
  if (dpermuted.shape().size() != 2 || dpermuted.shape()[0] != rows)
    refuse(kOp, "the gradient of permuted has shape " + text(dpermuted.shape()) + "; accepted: [" +
                    std::to_string(rows) + ", H].");
  const HostCall call("pf_moe_token_permute_grad", dpermuted);
  const Tensor gradient = dense(dpermuted);
  const Shape permuted_shape = dpermuted.shape();
  const auto shape = kernel_shape(indices.shape(), permuted_shape[0], permuted_shape[1]);
  Tensor dtokens = paddle::empty({shape.tokens, shape.width}, dpermuted.dtype(), dpermuted.place());
  if (dtokens.numel() > 0)
    kernels::moe_unpermute(element_type(dpermuted.dtype()), shape, gradient.data(), sorted.data<int32_t>(), nullptr,
                           dtokens.data());
  return {dtokens};
}

// Paddle 3.3.1 terminates the process if shape inference throws while a program is captured, so invalid inputs are
// rejected at run time. Unknown sizes are -1.
std::vector<Shape> infer_shapes(const Shape& tokens, const Shape& indices, int64_t num_out_tokens) {
  return {{kept(entries(indices), num_out_tokens), tokens.empty() ? -1 : tokens.back()}, {entries(indices)}};
}
std::vector<DataType> infer_dtypes(const DataType& tokens, const DataType& /*indices*/) {
  return {tokens, DataType::INT32};
}
std::vector<Shape> infer_gradient_shapes(const Shape& dpermuted, const Shape& indices, const Shape& /*sorted*/,
                                         int64_t /*num_out_tokens*/) {
  return {{indices.empty() ? -1 : indices[0], dpermuted.empty() ? -1 : dpermuted.back()}};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& dpermuted, const DataType& /*indices*/,
                                            const DataType& /*sorted*/) {
  return {dpermuted};
}

}  // namespace
}  // namespace paddle_fused::ops::moe_token_permute

PD_BUILD_OP(pf_moe_token_permute)
    .Inputs({"tokens", "indices"})
    .Outputs({"permuted", "sorted_indices"})
    .Attrs({"num_out_tokens: int64_t"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_permute::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_permute::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_permute::infer_dtypes));

PD_BUILD_GRAD_OP(pf_moe_token_permute)
    .Inputs({paddle::Grad("permuted"), "indices", "sorted_indices"})
    .Outputs({paddle::Grad("tokens")})
    .Attrs({"num_out_tokens: int64_t"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_permute::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_permute::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_permute::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_moe_token_permute, "tokens", "permuted");
