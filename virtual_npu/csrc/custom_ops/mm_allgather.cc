// fused_allgather_mm(x1, x2, bias; hcom, world_size, gather_index, gather_output, comm_turn) -> (out_gather_mm,
// out_gather), the operator of paddle-custom-npu over aclnnAllGatherMatmul.
//
//   out_gather [world_size * m, k] = x1 [m, k] of all ranks, concatenated    out_gather_mm = out_gather x2 [k, n]
//
// Without gather_output, out_gather is one unused element. There is no bias.
//
// A pipeline: chunks of x1's rows are gathered on the communication stream, each to its place. This rank's own rows
// are multiplied first, while the first chunk is transferred, then the others' rows of each chunk as it arrives.
#include <cstring>

#include "framework/paddle_release.h"
#include "custom_ops/mm_operands.h"
#include "custom_ops/mm_communication.h"
#include "observe/operator_call.h"

namespace virtual_npu::fused_allgather_mm {
namespace {

constexpr char kOp[] = "fused_allgather_mm";
namespace rules = contract::rules;

void check_settings(bool has_bias, int64_t world_size, int64_t gather_index, int64_t comm_turn) {
  check_no_bias(kOp, has_bias);
  check_world_size(kOp, world_size);
  check_comm_turn(kOp, comm_turn);
  if (gather_index != 0) refuse(rules::mc2_gather_index, kOp, "gather_index is " + std::to_string(gather_index));
}

// `gathered` has space for the rows of all ranks. This rank's own rows are copied only if `wanted`.
void gather_and_multiply(const MatmulOperands& operands, MatmulCommunication* communication, bool wanted,
                         void* gathered, void* out) {
  const int64_t rows = operands.rows(), depth = operands.depth(), element = phi::SizeOf(operands.dtype());
  const int64_t row_bytes = depth * element, out_row_bytes = operands.columns() * element;
  const auto gathered_row = [&](int64_t row) { return static_cast<char*>(gathered) + row * row_bytes; };
  const auto multiply = [&](int64_t row, int64_t count, const void* left) {
    operands.multiply(left, count, static_cast<char*>(out) + row * out_row_bytes);
  };
  const Chunks chunks(rows, row_bytes);
  for (int64_t i = 0; i < chunks.count(); ++i)
    communication->gather_others(operands.row_of_x1(chunks.begin(i)), gathered_row(chunks.begin(i)),
                                 chunks.rows(i) * depth, rows * depth);
  const int64_t own = communication->rank();
  multiply(own * rows, rows, operands.row_of_x1(0));
  if (wanted) std::memcpy(gathered_row(own * rows), operands.row_of_x1(0), rows * row_bytes);
  for (int64_t i = 0; i < chunks.count(); ++i) {
    communication->wait(i + 1);
    for (int64_t rank = 0; rank < communication->ranks(); ++rank) {
      const int64_t row = rank * rows + chunks.begin(i);
      if (rank != own) multiply(row, chunks.rows(i), gathered_row(row));
    }
  }
}

std::vector<paddle::Tensor> forward(const paddle::Tensor& x1, const paddle::Tensor& x2,
                                    const paddle::optional<paddle::Tensor>& bias, std::string hcom, int64_t world_size,
                                    int64_t gather_index, bool gather_output, int64_t comm_turn) {
  const MatmulOperands operands(kOp, x1, x2);
  check_settings(static_cast<bool>(bias), world_size, gather_index, comm_turn);
  check_depth(kOp, x1.shape());
  // The results are created before the communication, which is always waited for before they can be freed.
  const int64_t rows = world_size * operands.rows(), depth = operands.depth();
  paddle::Tensor out = paddle::empty({rows, operands.columns()}, x1.dtype(), x1.place());
  const paddle::Tensor gathered = paddle::empty({rows, depth}, x1.dtype(), x1.place());
  const paddle::Tensor returned = gather_output ? gathered : paddle::empty({1}, x1.dtype(), x1.place());
  if (operands.rows() == 0) {
    const MatmulCommunication checked(kOp, hcom, x1.dtype());
    return {out, returned};
  }
  MatmulCommunication communication(kOp, hcom, x1.dtype());
  communication.check_ranks(kOp, world_size);
  OperatorCall call(kOp, x1.dtype(), {&x1, &x2});
  gather_and_multiply(operands, &communication, gather_output, const_cast<void*>(gathered.data()), out.data());
  return call.returns({out, returned});
}

int64_t times(int64_t world_size, int64_t rows) { return rows < 0 ? rows : world_size * rows; }

std::vector<Shape> infer_shapes(const Shape& x1, const Shape& x2, const paddle::optional<Shape>& bias,
                                const std::string& /*hcom*/, int64_t world_size, int64_t gather_index,
                                bool gather_output, int64_t comm_turn) {
  check_product(kOp, x1, x2);
  check_settings(static_cast<bool>(bias), world_size, gather_index, comm_turn);
  check_depth(kOp, x1);
  const int64_t rows = times(world_size, x1[0]);
  return {{rows, x2[1]}, gather_output ? Shape{rows, x1[1]} : Shape{1}};
}

std::vector<paddle::DataType> infer_dtypes(const paddle::DataType& x1, const paddle::DataType& /*x2*/,
                                           const paddle::optional<paddle::DataType>& /*bias*/) {
  return {x1, x1};
}

}  // namespace
}  // namespace virtual_npu::fused_allgather_mm

PD_BUILD_OP(fused_allgather_mm)
    .Inputs({"x1", "x2", paddle::Optional("bias")})
    .Outputs({"out_gather_mm", "out_gather"})
    .Attrs({"hcom: std::string", "world_size: int64_t", "gather_index: int64_t", "gather_output: bool",
            "comm_turn: int64_t"})
    .SetKernelFn(PF_KERNEL(virtual_npu::fused_allgather_mm::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::fused_allgather_mm::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::fused_allgather_mm::infer_dtypes));
