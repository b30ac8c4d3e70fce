// fused_rope(query, cos, sin) -> query_out, the operator of paddle-custom-npu over RotaryMul / RotaryMulGrad.
//
// query: [B, S, N, D]; cos, sin: [1, S, 1, D]. All three have the same dtype. Called once for the queries and once
// for the keys. cos and sin have no gradients.
// Legend: B batch, S sequence length, N heads, D head size.
#include "framework/paddle_release.h"
#include "kernels/attention/rotary.h"
#include "custom_ops/checks.h"
#include "element_type.h"
#include "observe/operator_call.h"

namespace virtual_npu::fused_rope {
namespace {

namespace kernels = paddle_fused::kernels;
using paddle::DataType;
using Shape = std::vector<int64_t>;

constexpr char kOp[] = "fused_rope";
namespace rules = contract::rules;
namespace limits = contract::limits;

bool agree(int64_t a, int64_t b) { return a == b || a < 0 || b < 0; }

// Also called while a static program is built, where an unknown dimension is -1.
void check_shapes(const Shape& query, const Shape& cos, const Shape& sin) {
  const std::string came = "query has shape " + text(query);
  if (query.size() != 4) refuse(rules::rotary_rank, kOp, came);
  const int64_t batch = query[0], seq_len = query[1], heads = query[2], head_dim = query[3];
  if (head_dim % limits::rotary_plugin_head_dim_multiple != 0 && head_dim > 0)
    refuse(rules::rotary_plugin_head_dim, kOp, "head_dim is " + std::to_string(head_dim));
  if (head_dim == 0 || head_dim >= limits::rotary_head_dim)
    refuse(rules::rotary_head_dim, kOp, "head_dim is " + std::to_string(head_dim));
  if (batch >= limits::rotary_batch || heads >= limits::rotary_heads) refuse(rules::rotary_batch_heads, kOp, came);
  const std::string angles = "cos has shape " + text(cos) + " and sin " + text(sin);
  for (const Shape* shape : {&cos, &sin}) {
    if (shape->size() != 4 || !agree((*shape)[0], 1) || !agree((*shape)[1], cos[1]) || !agree((*shape)[2], 1) ||
        !agree((*shape)[3], cos[3]))
      refuse(rules::rotary_plugin_angles, kOp, angles);
    if (!agree((*shape)[1], seq_len) || !agree((*shape)[3], head_dim))
      refuse(rules::rotary_angles, kOp, angles + " while " + came);
  }
}

void check_inputs(const paddle::Tensor& query, const paddle::Tensor& cos, const paddle::Tensor& sin) {
  check_places(kOp, {{"query", query}, {"cos", cos}, {"sin", sin}});
  check_dtype(rules::rotary_dtype, kOp, {"query", query}, contract::dtypes::rotary_dtype);
  check_same_dtype(rules::rotary_same_dtype, kOp, {{"query", query}, {"cos", cos}, {"sin", sin}});
  check_shapes(query.shape(), cos.shape(), sin.shape());
}

using Rotate = decltype(&kernels::rotary_forward);

paddle::Tensor rotate(Rotate run, const paddle::Tensor& x, const paddle::Tensor& cos, const paddle::Tensor& sin) {
  const Shape shape = x.shape();
  const int64_t batch = shape[0], seq_len = shape[1], heads = shape[2], head_dim = shape[3];
  const paddle::Tensor input = dense(x), cosines = dense(cos), sines = dense(sin);
  paddle::Tensor out = paddle::empty(shape, x.dtype(), x.place());
  if (x.numel() > 0)
    run(element_type(x.dtype()), {{batch, seq_len, heads}, {1, seq_len, 1}, head_dim, kernels::RotaryMode::kHalf},
        input.data(), cosines.data(), sines.data(), out.data());
  return out;
}

std::vector<paddle::Tensor> forward(const paddle::Tensor& query, const paddle::Tensor& cos,
                                    const paddle::Tensor& sin) {
  check_inputs(query, cos, sin);
  OperatorCall call(kOp, query.dtype(), {&query, &cos, &sin});
  return call.returns({rotate(kernels::rotary_forward, query, cos, sin)});
}

std::vector<paddle::Tensor> backward(const paddle::Tensor& query, const paddle::Tensor& query_out_grad,
                                     const paddle::Tensor& cos, const paddle::Tensor& sin) {
  check_inputs(query, cos, sin);
  check_gradient(kOp, {"query", query}, {"the gradient of query_out", query_out_grad});
  OperatorCall call("fused_rope_grad", query.dtype(), {&query, &query_out_grad, &cos, &sin});
  return call.returns({rotate(kernels::rotary_backward, query_out_grad, cos, sin)});
}

std::vector<Shape> infer_shapes(const Shape& query, const Shape& cos, const Shape& sin) {
  check_shapes(query, cos, sin);
  return {query};
}

std::vector<DataType> infer_dtypes(const DataType& query, const DataType& /*cos*/, const DataType& /*sin*/) {
  return {query};
}

std::vector<Shape> infer_gradient_shapes(const Shape& query, const Shape& /*query_out_grad*/, const Shape& /*cos*/,
                                         const Shape& /*sin*/) {
  return {query};
}

std::vector<DataType> infer_gradient_dtypes(const DataType& query, const DataType& /*query_out_grad*/,
                                            const DataType& /*cos*/, const DataType& /*sin*/) {
  return {query};
}

}  // namespace
}  // namespace virtual_npu::fused_rope

PD_BUILD_OP(fused_rope)
    .Inputs({"query", "cos", "sin"})
    .Outputs({"query_out"})
    .SetKernelFn(PF_KERNEL(virtual_npu::fused_rope::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::fused_rope::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::fused_rope::infer_dtypes));

PD_BUILD_GRAD_OP(fused_rope)
    .Inputs({"query", paddle::Grad("query_out"), "cos", "sin"})
    .Outputs({paddle::Grad("query")})
    .SetKernelFn(PF_KERNEL(virtual_npu::fused_rope::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::fused_rope::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::fused_rope::infer_gradient_dtypes));
