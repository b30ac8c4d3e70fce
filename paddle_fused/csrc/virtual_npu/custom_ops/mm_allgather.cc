// fused_allgather_mm(x1, x2, bias; hcom, world_size, gather_index, gather_output, comm_turn) -> (out_gather_mm,
// out_gather), the operator of paddle-custom-npu over aclnnAllGatherMatmul.
//
//   out_gather [world_size * m, k] = x1 [m, k] of every rank, one after another    out_gather_mm = out_gather x2 [k, n]
//
// Without gather_output out_gather is one element without meaning. There is no bias.
//
// A pipeline: chunks of x1's rows are gathered on the communication stream; this rank's own rows are multiplied first,
// while the first chunk travels, then the others' rows of each chunk as it arrives.
#include <cstring>

#include "virtual_npu/bridge/record.h"
#include "virtual_npu/custom_ops/mm_operands.h"
#include "virtual_npu/custom_ops/mm_traffic.h"

namespace virtual_npu {
namespace {

constexpr char kOp[] = "fused_allgather_mm";
namespace rules = contract::rules;

void check_settings(bool has_bias, int64_t world_size, int64_t gather_index, int64_t comm_turn) {
  check_no_bias(kOp, has_bias);
  check_world_size(kOp, world_size);
  check_comm_turn(kOp, comm_turn);
  if (gather_index != 0) refuse(rules::mc2_gather_index, kOp, "gather_index is " + std::to_string(gather_index));
}

class Gathering {
 public:
  Gathering(const MatmulOperands& operands, int64_t ranks, paddle::Tensor* out, paddle::Tensor* gathered)
      : operands_(operands),
        ranks_(ranks),
        row_bytes_(operands.depth() * phi::SizeOf(operands.dtype())),
        out_row_bytes_(operands.columns() * phi::SizeOf(operands.dtype())),
        chunks_(operands.rows(), row_bytes_),
        out_(static_cast<char*>(out->data())),
        gathered_(gathered ? static_cast<char*>(gathered->data()) : nullptr) {
    for (int64_t i = 0; i < chunks_.count(); ++i)
      arriving_.push_back(
          paddle::empty({ranks, chunks_.rows(i), operands.depth()}, operands.dtype(), operands.place()));
  }

  void run(MatmulTraffic* traffic) {
    const int64_t own = traffic->rank();
    for (int64_t i = 0; i < chunks_.count(); ++i)
      traffic->all_gather(operands_.row_of_x1(chunks_.begin(i)), arriving_[i].data(),
                          chunks_.rows(i) * operands_.depth());
    finish(own, 0, operands_.rows(), operands_.row_of_x1(0));
    for (int64_t i = 0; i < chunks_.count(); ++i) {
      traffic->wait(i + 1);
      for (int64_t rank = 0; rank < ranks_; ++rank)
        if (rank != own)
          finish(rank, chunks_.begin(i), chunks_.rows(i),
                 static_cast<char*>(arriving_[i].data()) + rank * chunks_.rows(i) * row_bytes_);
    }
  }

 private:
  // Rows [first, first + rows) of those of `rank` are at `left`.
  void finish(int64_t rank, int64_t first, int64_t rows, const void* left) {
    const int64_t row = rank * operands_.rows() + first;
    operands_.multiply(left, rows, out_ + row * out_row_bytes_);
    if (gathered_) std::memcpy(gathered_ + row * row_bytes_, left, rows * row_bytes_);
  }

  const MatmulOperands& operands_;
  const int64_t ranks_, row_bytes_, out_row_bytes_;
  const Chunks chunks_;
  char *const out_, *const gathered_;
  std::vector<paddle::Tensor> arriving_;
};

std::vector<paddle::Tensor> forward(const paddle::Tensor& x1, const paddle::Tensor& x2,
                                    const paddle::optional<paddle::Tensor>& bias, std::string hcom, int64_t world_size,
                                    int64_t gather_index, bool gather_output, int64_t comm_turn) {
  const MatmulOperands operands(kOp, x1, x2);
  check_settings(static_cast<bool>(bias), world_size, gather_index, comm_turn);
  check_depth(kOp, x1.shape());
  // The results are made before the traffic: it waits, whatever happens, before they can be freed.
  const int64_t rows = world_size * operands.rows(), depth = operands.depth();
  paddle::Tensor out = paddle::empty({rows, operands.columns()}, x1.dtype(), x1.place());
  paddle::Tensor gathered = paddle::empty(gather_output ? Shape{rows, depth} : Shape{1}, x1.dtype(), x1.place());
  if (operands.rows() == 0) {
    const MatmulTraffic checked(kOp, hcom, x1.dtype());
    return {out, gathered};
  }
  Gathering gathering(operands, world_size, &out, gather_output ? &gathered : nullptr);
  MatmulTraffic traffic(kOp, hcom, x1.dtype());
  if (traffic.ranks() != world_size)
    refuse(rules::mc2_world_size, kOp,
           "world_size is " + std::to_string(world_size) + " and the communication domain has " +
               std::to_string(traffic.ranks()) + " ranks");
  OperatorCall call(kOp, x1.dtype(), {&x1, &x2});
  gathering.run(&traffic);
  return call.returns({out, gathered});
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
}  // namespace virtual_npu

PD_BUILD_OP(fused_allgather_mm)
    .Inputs({"x1", "x2", paddle::Optional("bias")})
    .Outputs({"out_gather_mm", "out_gather"})
    .Attrs({"hcom: std::string", "world_size: int64_t", "gather_index: int64_t", "gather_output: bool",
            "comm_turn: int64_t"})
    .SetKernelFn(PD_KERNEL(virtual_npu::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(virtual_npu::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(virtual_npu::infer_dtypes));
