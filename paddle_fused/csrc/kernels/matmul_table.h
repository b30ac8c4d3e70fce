// What kernels/matmul.cc hands to the code of one instruction set: the pieces of one block of the product.
#pragma once
#include <cstdint>

#include "kernels/matmul.h"

namespace paddle_fused::kernels {

// A tile of the result, in fp32, with the parts of A and B that are multiplied at a time, stays in a core's L2 cache.
// kMatmulColumns is a multiple of the panel's width on every instruction set.
constexpr int64_t kMatmulRows = 64, kMatmulColumns = 192, kMatmulDepth = 128;

// Part of an operand: `data` is its first element.
struct MatmulBlock {
  const void* data;
  int64_t row_stride, column_stride;
  int64_t rows, columns;
};

struct MatmulTable {
  // Columns per panel. A packed panel holds kMatmulDepth rows of that many floats.
  int64_t panel_columns;

  // All are indexed by the ElementType of what they read or write in memory. Packs a block of B, at most kMatmulDepth rows and panel_columns columns, into a panel.
  void (*pack_panel[3])(const MatmulBlock& b, float* panel);
  // tile (+)= block of A, at most kMatmulRows by kMatmulDepth, times the given panels of `columns` columns together.
  // tile holds kMatmulRows rows of kMatmulColumns floats; its rows and columns beyond those asked for are undefined.
  void (*multiply[3])(const MatmulBlock& a, const float* panels, int64_t columns, float* tile, bool accumulate);
  // Rounds a part of a tile into the result, or adds it to what stands there.
  void (*store[3])(const float* tile, int64_t rows, int64_t columns, void* out, int64_t out_row_stride,
                   bool accumulate);
};
PF_DECLARE_TABLE(MatmulTable, matmul_table)

}  // namespace paddle_fused::kernels
