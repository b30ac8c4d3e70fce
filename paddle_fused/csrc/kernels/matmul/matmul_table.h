// What matmul.cc hands to the code of one instruction set: packing, the product of packed panels, the result.
#pragma once
#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace paddle_fused::kernels {

// Products that are summed in registers before they are added to a sum in memory. Rounding errors grow with it; it is
// the same on every instruction set, so that those with fused multiply-add give the same bits. (Products of bfloat16 by
// AVX512_BF16 and AMX are summed one after another, all of them.)
constexpr int64_t kMatmulSummed = 128;

// Part of an operand: `data` is its first element.
struct MatmulBlock {
  const void* data;
  int64_t row_stride, column_stride;
  int64_t rows, columns;
};

// A panel is a strip of an operand as wide as the register tile, in the order in which the product reads it: for each
// step in depth panel_rows elements of A or panel_columns elements of B. What stands in it, floats or pairs of 16-bit
// elements, only the instruction set's own code knows.
struct MatmulTable {
  int64_t panel_rows, panel_columns;  // of the register tile
  int64_t packed_size;                // bytes of an element in a panel
  int64_t depth_multiple;             // a panel's depth is rounded up to it
  int64_t packed_depth;               // that is packed at a time, a multiple of kMatmulSummed
  int64_t block_panels;               // so many panels of A, packed_depth deep, stay in a core's L2 cache
  int64_t slack;                      // bytes that packing may write beyond a panel's end

  // Every thread calls them before and after the functions below.
  void (*enter)();
  void (*leave)();

  // All are indexed by the ElementType of what they read or write in memory. A block becomes consecutive panels of the
  // block's depth, or a part of deeper ones; what stands in rows (or columns) that the last one lacks must not be used.
  void (*pack_a[3])(const MatmulBlock& a, void* panels);
  void (*pack_b[3])(const MatmulBlock& b, int64_t panel_depth, void* panels);
  // sums (+)= A B for consecutive panels of A that hold `rows` rows, and one panel of B. Sums are register tiles one
  // after another, row by row.
  void (*multiply)(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums,
                   bool accumulate);
  // Rounds the first rows and columns of a register tile into the result, or adds them to what stands there.
  void (*store[3])(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride,
                   bool accumulate);
};
PF_DECLARE_PRODUCT_TABLE(MatmulTable, matmul_table)

}  // namespace paddle_fused::kernels
