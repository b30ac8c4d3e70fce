// The interface between matmul.cc and the code for one instruction set: packing, products of packed panels, results.
#pragma once
#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace paddle_fused::kernels {

// Number of products that are summed in registers before they are added to a sum in memory. Rounding errors grow with
// it. It is the same on every instruction set, so those with fused multiply-add give the same bits. (AVX512_BF16 and
// AMX sum all bfloat16 products sequentially.)
constexpr int64_t kMatmulSummed = 128;

// A part of an operand. `data` is its first element.
struct MatmulBlock {
  const void* data;
  int64_t row_stride, column_stride;
  int64_t rows, columns;
};

// A panel is a strip of an operand as wide as the register tile, in the order in which the product reads it: for each
// step in depth, panel_rows elements of A or panel_columns elements of B. The format of the elements (floats or pairs
// of 16-bit elements) depends on the instruction set.
struct MatmulTable {
  int64_t panel_rows, panel_columns;  // of the register tile
  int64_t packed_size;                // bytes per element in a panel
  int64_t depth_multiple;             // a panel's depth is rounded up to a multiple of this
  int64_t packed_depth;               // depth packed at a time, a multiple of kMatmulSummed
  int64_t block_panels;               // number of panels of A, packed_depth deep, that fit in a core's L2 cache
  int64_t slack;                      // bytes that packing may write beyond a panel's end

  // Every thread calls enter before and leave after the functions below.
  void (*enter)();
  void (*leave)();

  // Indexed by the ElementType in memory. A block becomes consecutive panels of the block's depth, or a part of
  // deeper ones. In the last panel, missing rows (or columns) have undefined values.
  void (*pack_a[3])(const MatmulBlock& a, void* panels);
  void (*pack_b[3])(const MatmulBlock& b, int64_t panel_depth, void* panels);
  // sums (+)= A B for consecutive panels of A with `rows` rows, and one panel of B. Sums are consecutive row-major
  // register tiles.
  void (*multiply)(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums,
                   bool accumulate);
  // Rounds the first rows and columns of a register tile into the result, or adds them to the existing values.
  void (*store[3])(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride,
                   bool accumulate);
};
PF_DECLARE_PRODUCT_TABLE(MatmulTable, matmul_table)

}  // namespace paddle_fused::kernels
