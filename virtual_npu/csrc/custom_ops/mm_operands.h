// Shared by fused_mm_allreduce, fused_allgather_mm and fused_mm_reduce_scatter: operands and their rules, matmuls of
// some rows by x2, which is packed once, and the partition of rows into chunks.
//
//   x1 [m, k]    x2 [k, n], possibly a transposed view    16-bit, summed in float32 and rounded once
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "custom_ops/checks.h"

namespace virtual_npu {

using Shape = std::vector<int64_t>;

// Check shapes. Also called while a static program is built, where an unknown dimension is -1.
void check_product(const char* op, const Shape& x1, const Shape& x2);
void check_depth(const char* op, const Shape& x1);  // for operators that transfer x1 or the result by rows
void check_reduce_op(const char* op, const std::string& reduce_op);
void check_comm_turn(const char* op, int64_t comm_turn);
void check_no_bias(const char* op, bool has_bias);
void check_world_size(const char* op, int64_t world_size);

class MatmulOperands {
 public:
  // Checks device, dtypes and shapes.
  MatmulOperands(const char* op, const paddle::Tensor& x1, const paddle::Tensor& x2);

  int64_t rows() const { return rows_; }
  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  paddle::DataType dtype() const { return x1_.dtype(); }
  const phi::Place& place() const { return x1_.place(); }
  // A pointer to row `row`. Rows are `depth()` elements apart.
  const void* row_of_x1(int64_t row) const;

  // out [rows, n] = left [rows, k] x2, both dense.
  void multiply(const void* left, int64_t rows, void* out) const;
  // The same plus bias [n], added before the sums are rounded.
  void multiply_add(const void* left, int64_t rows, const paddle::Tensor& bias, void* out) const;
  // out[i] = rows [first, first + rows) of part i of x1, which is split into `parts` equal parts, times x2.
  void multiply_of_each_part(int64_t parts, int64_t first, int64_t rows, void* out) const;

 private:
  void multiply_into(const void* left, int64_t rows, paddle_fused::kernels::ElementType type, bool accumulate,
                     void* out) const;

  paddle::Tensor x1_, x2_;
  mutable std::unique_ptr<paddle_fused::kernels::PackedMatrix> packed_;  // x2, packed by the first product
  int64_t rows_, depth_, columns_;
  int64_t row_stride_, column_stride_;  // of x2
};

// [begin(0), begin(1)), ... partition [0, rows) into chunks of almost equal size. With comm_turn 0, the operator
// chooses
// their number: more chunks shorten the wait at the end, but each chunk must amortize its collective and its product.
class Chunks {
 public:
  Chunks(int64_t rows, int64_t bytes_of_a_row);
  int64_t count() const { return count_; }
  int64_t begin(int64_t i) const { return rows_ * i / count_; }
  int64_t rows(int64_t i) const { return begin(i + 1) - begin(i); }

 private:
  int64_t rows_, count_;
};

}  // namespace virtual_npu
