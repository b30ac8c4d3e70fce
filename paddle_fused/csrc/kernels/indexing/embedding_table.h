#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// sum_rows, indexed by ElementType: out = rows[positions[0]] + ... + rows[positions[count - 1]], in this order, for
// rows of `width` elements. `total` is scratch space for `width` floats.
struct EmbeddingTable {
  void (*sum_rows[3])(const void* rows, const int64_t* positions, int64_t count, int64_t width, float* total,
                      void* out);
};
PF_DECLARE_TABLE(EmbeddingTable, embedding_table)

}  // namespace paddle_fused::kernels
