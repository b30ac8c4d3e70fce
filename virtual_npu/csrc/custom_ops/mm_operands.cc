#include "custom_ops/mm_operands.h"

#include <algorithm>

#include "kernels/elementwise/cast.h"
#include "paddle/common/ddim.h"
#include "element_type.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
namespace rules = contract::rules;
namespace limits = contract::limits;
using kernels::ElementType;

constexpr int64_t kMostChunks = 8;
constexpr int64_t kFewestRows = 32;               // minimum rows per chunk
constexpr int64_t kFewestBytes = int64_t{1} << 16;  // minimum bytes that a rank sends per chunk

std::string text_of_both(const Shape& x1, const Shape& x2) {
  return "x1 has shape " + text(x1) + " and x2 " + text(x2);
}

}  // namespace

void check_product(const char* op, const Shape& x1, const Shape& x2) {
  if (x1.size() != 2 || x2.size() != 2) refuse(rules::mc2_rank, op, text_of_both(x1, x2));
  if (x1[1] != x2[0] && x1[1] >= 0 && x2[0] >= 0) refuse(rules::mc2_same_depth, op, text_of_both(x1, x2));
}

void check_depth(const char* op, const Shape& x1) {
  const int64_t depth = x1[1];
  if (depth < 0 || (depth >= limits::mc2_depth && depth < limits::mc2_depth_below)) return;
  refuse(rules::mc2_depth, op, "k is " + std::to_string(depth));
}

void check_reduce_op(const char* op, const std::string& reduce_op) {
  if (reduce_op != "sum") refuse(rules::mc2_reduce_op, op, "reduce_op is " + reduce_op);
}

void check_comm_turn(const char* op, int64_t comm_turn) {
  if (comm_turn != 0) refuse(rules::mc2_comm_turn, op, "comm_turn is " + std::to_string(comm_turn));
}

void check_no_bias(const char* op, bool has_bias) {
  if (has_bias) refuse(rules::mc2_bias, op, "bias is not None");
}

void check_world_size(const char* op, int64_t world_size) {
  const bool is_a3 = config().card == Card::k910C;
  const int64_t most = is_a3 ? at_release(limits::mc2_most_ranks_a3) : limits::mc2_most_ranks;
  if (most == 0)
    PADDLE_THROW(common::errors::Unavailable(
        "%s: CANN has this operator for the 910C from 8.2.RC1 on (VIRTUAL_NPU_CANN). Run a matmul and then the "
        "collective.",
        op));
  const bool is_power_of_two = (world_size & (world_size - 1)) == 0;
  if (is_power_of_two && world_size >= 2 && world_size <= most) return;
  refuse(rules::mc2_world_size, op, "world_size is " + std::to_string(world_size));
}

MatmulOperands::MatmulOperands(const char* op, const paddle::Tensor& x1, const paddle::Tensor& x2) {
  check_places(op, {{"x1", x1}, {"x2", x2}});
  check_dtype(rules::mc2_dtype, op, {"x1", x1}, contract::dtypes::mc2_dtype);
  check_same_dtype(rules::mc2_same_dtype, op, {{"x1", x1}, {"x2", x2}});
  check_product(op, x1.shape(), x2.shape());
  rows_ = x1.shape()[0];
  depth_ = x1.shape()[1];
  columns_ = x2.shape()[1];
  x1_ = dense(x1);
  const Shape strides = common::vectorize(x2.strides());
  const bool is_transposed = !x2.is_contiguous() && strides[0] == 1 && strides[1] == depth_;
  x2_ = is_transposed ? x2 : dense(x2);
  row_stride_ = is_transposed ? 1 : columns_;
  column_stride_ = is_transposed ? depth_ : 1;
}

const void* MatmulOperands::row_of_x1(int64_t row) const {
  const int64_t size = kernels::element_size(element_type(dtype()));
  return static_cast<const char*>(x1_.data()) + row * depth_ * size;
}

void MatmulOperands::multiply_into(const void* left, int64_t rows, ElementType type, bool accumulate, void* out) const {
  const int64_t start = 0;
  if (!packed_)
    packed_ = std::make_unique<kernels::PackedMatrix>(
        element_type(dtype()), element_type(dtype()), depth_, columns_,
        kernels::MatmulOperand{x2_.data(), row_stride_, column_stride_, &start});
  packed_->multiply(rows, {left, depth_, 1, &start}, type, {out, columns_, accumulate});
}

void MatmulOperands::multiply(const void* left, int64_t rows, void* out) const {
  multiply_into(left, rows, element_type(dtype()), false, out);
}

void MatmulOperands::multiply_add(const void* left, int64_t rows, const paddle::Tensor& bias, void* out) const {
  const ElementType type = element_type(dtype());
  std::vector<float> sums(rows * columns_);
  for (int64_t row = 0; row < rows; ++row)
    kernels::cast(type, bias.data(), ElementType::kFloat32, sums.data() + row * columns_, columns_);
  multiply_into(left, rows, ElementType::kFloat32, true, sums.data());
  kernels::cast(ElementType::kFloat32, sums.data(), type, out, rows * columns_);
}

void MatmulOperands::multiply_of_each_part(int64_t parts, int64_t first, int64_t rows, void* out) const {
  const int64_t bytes = rows * columns_ * kernels::element_size(element_type(dtype()));
  for (int64_t i = 0; i < parts; ++i)
    multiply(row_of_x1(rows_ / parts * i + first), rows, static_cast<char*>(out) + i * bytes);
}

Chunks::Chunks(int64_t rows, int64_t bytes_of_a_row)
    : rows_(rows),
      count_(std::clamp<int64_t>(std::min(rows / kFewestRows, rows * bytes_of_a_row / kFewestBytes), 1, kMostChunks)) {}

}  // namespace virtual_npu
