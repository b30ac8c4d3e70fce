// fused_mm_reduce_scatter(x1, x2, bias; hcom, world_size, reduce_op, comm_turn) -> result, the operator of
// paddle-custom-npu over aclnnMatmulReduceScatter.
//
//   result [m / world_size, n] = this rank's rows of the sum over all ranks of x1 [m, k] x2 [k, n]
//
// There is no bias. A pipeline: a chunk has some rows of every rank's part. While a chunk is multiplied, earlier
// chunks are reduced and scattered on the communication stream.
#include "framework/paddle_release.h"
#include "custom_ops/mm_operands.h"
#include "custom_ops/mm_communication.h"
#include "observe/operator_call.h"

namespace virtual_npu::fused_mm_reduce_scatter {
namespace {

constexpr char kOp[] = "fused_mm_reduce_scatter";
namespace rules = contract::rules;

void check_rows(int64_t rows, int64_t world_size) {
  if (rows < 0 || rows % world_size == 0) return;
  refuse(rules::mc2_rows, kOp,
         "x1 has " + std::to_string(rows) + " rows and there are " + std::to_string(world_size) + " ranks");
}

void check_settings(bool has_bias, int64_t world_size, const std::string& reduce_op, int64_t comm_turn) {
  check_no_bias(kOp, has_bias);
  check_world_size(kOp, world_size);
  check_reduce_op(kOp, reduce_op);
  check_comm_turn(kOp, comm_turn);
}

std::vector<paddle::Tensor> forward(const paddle::Tensor& x1, const paddle::Tensor& x2,
                                    const paddle::optional<paddle::Tensor>& bias, std::string hcom, int64_t world_size,
                                    std::string reduce_op, int64_t comm_turn) {
  const MatmulOperands operands(kOp, x1, x2);
  check_settings(static_cast<bool>(bias), world_size, reduce_op, comm_turn);
  check_depth(kOp, x1.shape());
  check_rows(operands.rows(), world_size);
  const int64_t rows = operands.rows() / world_size, columns = operands.columns();
  paddle::Tensor result = paddle::empty({rows, columns}, x1.dtype(), x1.place());
  std::vector<paddle::Tensor> leaving;  // freed after the communication has finished
  MatmulCommunication communication(kOp, hcom, x1.dtype());
  communication.check_ranks(kOp, world_size);
  OperatorCall call(kOp, x1.dtype(), {&x1, &x2});
  if (result.numel() == 0) return {result};
  const int64_t row_bytes = columns * phi::SizeOf(x1.dtype());
  const Chunks chunks(rows, row_bytes);
  for (int64_t i = 0; i < chunks.count(); ++i) {
    leaving.push_back(paddle::empty({world_size, chunks.rows(i), columns}, x1.dtype(), x1.place()));
    operands.multiply_of_each_part(world_size, chunks.begin(i), chunks.rows(i), leaving.back().data());
    communication.reduce_scatter(leaving.back().data(), static_cast<char*>(result.data()) + chunks.begin(i) * row_bytes,
                           chunks.rows(i) * columns);
  }
  communication.wait_for_all();
  return call.returns({result});
}

std::vector<Shape> infer_shapes(const Shape& x1, const Shape& x2, const paddle::optional<Shape>& bias,
                                const std::string& /*hcom*/, int64_t world_size, const std::string& reduce_op,
                                int64_t comm_turn) {
  check_product(kOp, x1, x2);
  check_settings(static_cast<bool>(bias), world_size, reduce_op, comm_turn);
  check_depth(kOp, x1);
  check_rows(x1[0], world_size);
  return {{x1[0] < 0 ? x1[0] : x1[0] / world_size, x2[1]}};
}

std::vector<paddle::DataType> infer_dtypes(const paddle::DataType& x1, const paddle::DataType& /*x2*/,
                                           const paddle::optional<paddle::DataType>& /*bias*/) {
  return {x1};
}

}  // namespace
}  // namespace virtual_npu::fused_mm_reduce_scatter

PD_BUILD_OP(fused_mm_reduce_scatter)
    .Inputs({"x1", "x2", paddle::Optional("bias")})
    .Outputs({"result"})
    .Attrs({"hcom: std::string", "world_size: int64_t", "reduce_op: std::string", "comm_turn: int64_t"})
    .SetKernelFn(PF_KERNEL(virtual_npu::fused_mm_reduce_scatter::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::fused_mm_reduce_scatter::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::fused_mm_reduce_scatter::infer_dtypes));
