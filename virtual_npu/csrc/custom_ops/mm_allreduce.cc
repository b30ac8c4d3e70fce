// fused_mm_allreduce(x1, x2, bias; hcom, reduce_op, comm_turn) -> result, the operator of paddle-custom-npu over
// aclnnMatmulAllReduce.
//
//   result [m, n] = sum over all ranks of (x1 [m, k] x2 [k, n] + bias [n])
//
// A pipeline: while a chunk of rows is multiplied, earlier chunks are summed on the communication stream.
// Upstream infers wrong shapes and dtypes; here they match the results.
#include "framework/paddle_release.h"
#include "paddle/phi/core/enforce.h"
#include "custom_ops/mm_operands.h"
#include "custom_ops/mm_communication.h"
#include "observe/operator_call.h"
#include "runtime/config.h"

namespace virtual_npu::fused_mm_allreduce {
namespace {

constexpr char kOp[] = "fused_mm_allreduce";
namespace rules = contract::rules;

void check_sizes(const Shape& x1, const Shape& x2) {
  constexpr int64_t most = contract::limits::mc2_all_reduce_size;
  if (x1[0] <= most && x1[1] <= most && x2[1] <= most && x1[1] != 0) return;
  refuse(rules::mc2_all_reduce_sizes, kOp, "x1 has shape " + text(x1) + " and x2 " + text(x2));
}

void check_bias(const paddle::Tensor& x1, const paddle::Tensor& bias, int64_t columns) {
  check_places(kOp, {{"x1", x1}, {"bias", bias}});
  check_same_dtype(rules::mc2_same_dtype, kOp, {{"x1", x1}, {"bias", bias}});
  if (bias.shape() == Shape{columns}) return;
  refuse(rules::mc2_bias_shape, kOp, "bias has shape " + text(bias.shape()) + " and n is " + std::to_string(columns));
}

std::vector<paddle::Tensor> forward(const paddle::Tensor& x1, const paddle::Tensor& x2,
                                    const paddle::optional<paddle::Tensor>& bias, std::string hcom,
                                    std::string reduce_op, int64_t comm_turn) {
  if (config().card == Card::k910C)
    PADDLE_THROW(common::errors::Unavailable(
        "%s: CANN has no aclnnMatmulAllReduce for the 910C (VIRTUAL_NPU_CARD). Run a matmul and then the collective.",
        kOp));
  if (x1.defined() && x2.defined()) {  // before any copy
    check_product(kOp, x1.shape(), x2.shape());
    check_sizes(x1.shape(), x2.shape());
  }
  const MatmulOperands operands(kOp, x1, x2);
  check_reduce_op(kOp, reduce_op);
  check_comm_turn(kOp, comm_turn);
  if (bias) check_bias(x1, *bias, operands.columns());
  paddle::Tensor result = paddle::empty({operands.rows(), operands.columns()}, x1.dtype(), x1.place());
  MatmulCommunication communication(kOp, hcom, x1.dtype());
  if (communication.ranks() != 1) check_world_size(kOp, communication.ranks());
  OperatorCall call(kOp, x1.dtype(), {&x1, &x2});
  if (result.numel() == 0) return {result};
  const paddle::Tensor added = bias ? dense(*bias) : paddle::Tensor();
  const int64_t row_bytes = operands.columns() * phi::SizeOf(x1.dtype());
  const Chunks chunks(operands.rows(), row_bytes);
  for (int64_t i = 0; i < chunks.count(); ++i) {
    char* out = static_cast<char*>(result.data()) + chunks.begin(i) * row_bytes;
    const void* left = operands.row_of_x1(chunks.begin(i));
    if (bias)
      operands.multiply_add(left, chunks.rows(i), added, out);
    else
      operands.multiply(left, chunks.rows(i), out);
    communication.all_reduce(out, chunks.rows(i) * operands.columns());
  }
  communication.wait_for_all();
  return call.returns({result});
}

std::vector<Shape> infer_shapes(const Shape& x1, const Shape& x2, const paddle::optional<Shape>& /*bias*/,
                                const std::string& /*hcom*/, const std::string& reduce_op, int64_t comm_turn) {
  check_product(kOp, x1, x2);
  check_reduce_op(kOp, reduce_op);
  check_comm_turn(kOp, comm_turn);
  return {{x1[0], x2[1]}};
}

std::vector<paddle::DataType> infer_dtypes(const paddle::DataType& x1, const paddle::DataType& /*x2*/,
                                           const paddle::optional<paddle::DataType>& /*bias*/) {
  return {x1};
}

}  // namespace
}  // namespace virtual_npu::fused_mm_allreduce

PD_BUILD_OP(fused_mm_allreduce)
    .Inputs({"x1", "x2", paddle::Optional("bias")})
    .Outputs({"result"})
    .Attrs({"hcom: std::string", "reduce_op: std::string", "comm_turn: int64_t"})
    .SetKernelFn(PF_KERNEL(virtual_npu::fused_mm_allreduce::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::fused_mm_allreduce::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::fused_mm_allreduce::infer_dtypes));
