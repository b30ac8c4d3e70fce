// pf_moe_token_unpermute(permuted, sorted_indices, probs) -> out: kernels/moe as an operator.
//   permuted [M, H], sorted_indices [T * K] int32, probs [T, K] -> out [T, H] with permuted's dtype
// pf_moe_token_restore(permuted, sorted_indices) -> out [T * K, H]: the same without probs, with K = 1.
// Entries of sorted_indices from M on were dropped and count as zeros.
#include "kernels/elementwise/cast.h"
#include "kernels/indexing/moe.h"
#include "ops/operator.h"

namespace paddle_fused::ops::moe_token_unpermute {
namespace {

constexpr char kUnpermute[] = "pf_moe_token_unpermute", kRestore[] = "pf_moe_token_restore";

void check_rows(const char* op, const Shape& permuted, const Shape& sorted) {
  if (permuted.size() == 2 && sorted.size() == 1 && permuted[0] <= sorted[0]) return;
  refuse(op, "permuted has shape " + text(permuted) + " and sorted_indices " + text(sorted) +
                 "; accepted: permuted [M, H] and sorted_indices [T * K] with M up to T * K.");
}
void check_probs(const Shape& sorted, const Shape& probs) {
  if (probs.size() == 2 && probs[1] > 0 && probs[0] * probs[1] == sorted[0]) return;
  refuse(kUnpermute, "probs has shape " + text(probs) + " and sorted_indices " + text(sorted) +
                         "; accepted: probs [T, K] with the number of elements of sorted_indices.");
}

void check(const char* op, const Tensor& permuted, const Tensor& sorted) {
  check_places(op, {{"permuted", permuted}, {"sorted_indices", sorted}});
  check_float(op, {"permuted", permuted});
  if (sorted.dtype() != DataType::INT32)
    refuse(op, "sorted_indices are " + text(sorted.dtype()) + "; accepted: int32, as returned by moe_token_permute.");
  check_rows(op, permuted.shape(), sorted.shape());
}
void check(const Tensor& permuted, const Tensor& sorted, const Tensor& probs) {
  check(kUnpermute, permuted, sorted);
  check_places(kUnpermute, {{"permuted", permuted}, {"probs", probs}});
  check_float(kUnpermute, {"probs", probs});
  check_probs(sorted.shape(), probs.shape());
}

// The inverse of sorted_indices. Computing it verifies that each index occurs once.
std::vector<int32_t> entries_of(const char* op, const Tensor& sorted) {
  const int64_t count = sorted.numel();
  std::vector<int32_t> entry_at(count);
  const int32_t* place = count ? sorted.data<int32_t>() : nullptr;
  const int64_t wrong = kernels::moe_entries(place, count, entry_at.data());
  if (wrong < count)
    refuse(op, "sorted index " + std::to_string(place[wrong]) + " is at position " + std::to_string(wrong) +
                   "; accepted: each number from 0 to " + std::to_string(count) +
                   " (exclusive) once. Pass the sorted_indices returned by moe_token_permute.");
  return entry_at;
}

std::vector<float> widened(const Tensor& probs) {
  std::vector<float> wide(probs.numel());
  if (!wide.empty())
    kernels::cast(element_type(probs.dtype()), probs.data(), kernels::ElementType::kFloat32, wide.data(), probs.numel());
  return wide;
}

kernels::MoeShape kernel_shape(const Tensor& permuted, int64_t tokens, int64_t top_k) {
  return {tokens, top_k, permuted.shape()[0], permuted.shape()[1]};
}

Tensor combine(const char* op, const Tensor& permuted, const Tensor& sorted, const kernels::MoeShape& shape,
               const float* probs) {
  check_size(op, {shape.tokens, shape.width});
  const HostCall call(op, permuted);
  const Tensor rows = dense(permuted), places = dense(sorted);
  entries_of(op, places);
  Tensor out = paddle::empty({shape.tokens, shape.width}, permuted.dtype(), permuted.place());
  if (out.numel() > 0)
    kernels::moe_unpermute(element_type(permuted.dtype()), shape, rows.data(), places.data<int32_t>(), probs,
                           out.data());
  return out;
}

std::vector<Tensor> unpermute(const Tensor& permuted, const Tensor& sorted, const Tensor& probs) {
  check(permuted, sorted, probs);
  const std::vector<float> wide = widened(dense(probs));
  return {combine(kUnpermute, permuted, sorted, kernel_shape(permuted, probs.shape()[0], probs.shape()[1]),
                  wide.data())};
}

std::vector<Tensor> restore(const Tensor& permuted, const Tensor& sorted) {
  check(kRestore, permuted, sorted);
  return {combine(kRestore, permuted, sorted, kernel_shape(permuted, sorted.numel(), 1), nullptr)};
}

std::vector<Tensor> unpermute_backward(const Tensor& dout, const Tensor& permuted, const Tensor& sorted,
                                       const Tensor& probs) {
  check(permuted, sorted, probs);
  check_gradient(kUnpermute, {"the gradient of out", dout}, {"permuted", permuted},
                 {probs.shape()[0], permuted.shape()[1]});
  const HostCall call("pf_moe_token_unpermute_grad", permuted);
  const Tensor gradient = dense(dout), rows = dense(permuted);
  const auto shape = kernel_shape(permuted, probs.shape()[0], probs.shape()[1]);
  const std::vector<int32_t> entry_at = entries_of(kUnpermute, dense(sorted));
  const std::vector<float> wide = widened(dense(probs));
  std::vector<float> dwide(wide.size(), 0.0f);
  Tensor dpermuted = paddle::empty(permuted.shape(), permuted.dtype(), permuted.place());
  Tensor dprobs = paddle::empty(probs.shape(), probs.dtype(), probs.place());
  if (dpermuted.numel() > 0)
    kernels::moe_unpermute_backward(element_type(permuted.dtype()), shape, gradient.data(), rows.data(),
                                    entry_at.data(), wide.data(), dpermuted.data(), dwide.data());
  if (!dwide.empty())
    kernels::cast(kernels::ElementType::kFloat32, dwide.data(), element_type(probs.dtype()), dprobs.data(),
                  probs.numel());
  return {dpermuted, dprobs};
}

std::vector<Tensor> restore_backward(const Tensor& dout, const Tensor& permuted, const Tensor& sorted) {
  check(kRestore, permuted, sorted);
  check_gradient(kRestore, {"the gradient of out", dout}, {"permuted", permuted},
                 {sorted.numel(), permuted.shape()[1]});
  const HostCall call("pf_moe_token_restore_grad", permuted);
  const Tensor gradient = dense(dout);
  const std::vector<int32_t> entry_at = entries_of(kRestore, dense(sorted));
  Tensor dpermuted = paddle::empty(permuted.shape(), permuted.dtype(), permuted.place());
  if (dpermuted.numel() > 0)
    kernels::moe_unpermute_backward(element_type(permuted.dtype()), kernel_shape(permuted, sorted.numel(), 1),
                                    gradient.data(), nullptr, entry_at.data(), nullptr, dpermuted.data(), nullptr);
  return {dpermuted};
}

// Paddle 3.3.1 terminates the process if shape inference throws while a program is captured, so invalid inputs are
// rejected at run time. Unknown sizes are -1.
Shape rows_of(const Shape& count, const Shape& permuted) {
  return {count.empty() ? -1 : count[0], permuted.empty() ? -1 : permuted.back()};
}

std::vector<Shape> unpermute_shapes(const Shape& permuted, const Shape& /*sorted*/, const Shape& probs) {
  return {rows_of(probs, permuted)};
}
std::vector<DataType> unpermute_dtypes(const DataType& permuted, const DataType&, const DataType&) {
  return {permuted};
}
std::vector<Shape> unpermute_gradient_shapes(const Shape&, const Shape& permuted, const Shape&, const Shape& probs) {
  return {permuted, probs};
}
std::vector<DataType> unpermute_gradient_dtypes(const DataType&, const DataType& permuted, const DataType&,
                                                const DataType& probs) {
  return {permuted, probs};
}
std::vector<Shape> restore_shapes(const Shape& permuted, const Shape& sorted) {
  return {rows_of(sorted, permuted)};
}
std::vector<DataType> restore_dtypes(const DataType& permuted, const DataType&) { return {permuted}; }
std::vector<Shape> restore_gradient_shapes(const Shape&, const Shape& permuted, const Shape&) { return {permuted}; }
std::vector<DataType> restore_gradient_dtypes(const DataType&, const DataType& permuted, const DataType&) {
  return {permuted};
}

}  // namespace
}  // namespace paddle_fused::ops::moe_token_unpermute

PD_BUILD_OP(pf_moe_token_unpermute)
    .Inputs({"permuted", "sorted_indices", "probs"})
    .Outputs({"out"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_unpermute::unpermute))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_unpermute::unpermute_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_unpermute::unpermute_dtypes));

PD_BUILD_GRAD_OP(pf_moe_token_unpermute)
    .Inputs({paddle::Grad("out"), "permuted", "sorted_indices", "probs"})
    .Outputs({paddle::Grad("permuted"), paddle::Grad("probs")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_unpermute::unpermute_backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_unpermute::unpermute_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_unpermute::unpermute_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_moe_token_unpermute, "permuted", "out");

PD_BUILD_OP(pf_moe_token_restore)
    .Inputs({"permuted", "sorted_indices"})
    .Outputs({"out"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_unpermute::restore))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_unpermute::restore_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_unpermute::restore_dtypes));

PD_BUILD_GRAD_OP(pf_moe_token_restore)
    .Inputs({paddle::Grad("out"), "permuted", "sorted_indices"})
    .Outputs({paddle::Grad("permuted")})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::moe_token_unpermute::restore_backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::moe_token_unpermute::restore_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::moe_token_unpermute::restore_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_moe_token_restore, "permuted", "out");
