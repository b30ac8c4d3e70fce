#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Maximum number of columns of sum_rows.
constexpr int64_t kSummedColumns = 1024;

struct ElementwiseTable {
  // binary[BinaryOp][ElementType]. Steps are 0 or 1, at most one of them 0.
  void (*binary[2][3])(const void* x, bool x_step, const void* y, bool y_step, int64_t count, void* out);
  void (*scale[3])(float scale, float bias, int64_t count, const void* x, void* out);
  // out[begin + i] = sum over t of x[t][begin + i] for i < count.
  void (*sum_terms[3])(int64_t terms, const void* const* x, int64_t begin, int64_t count, void* out);
  // sums[j] = sum over i of x[i * stride + j] for j < columns.
  void (*sum_rows[3])(int64_t rows, int64_t stride, int64_t columns, const void* x, void* sums);
};
PF_DECLARE_TABLE(ElementwiseTable, elementwise_table)

}  // namespace paddle_fused::kernels
