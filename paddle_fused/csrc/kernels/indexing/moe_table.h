#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType; rows are `width` elements long.
struct MoeTable {
  // out = sum over k < top_k of probs[k] * rows[place[k]], skipping places >= `kept`. probs may be null for ones.
  void (*combine[3])(const void* rows, int64_t kept, const int32_t* place, const float* probs, int64_t top_k,
                     int64_t width, void* out);
  // drow = prob * dout; returns dout . row.
  float (*scale_and_dot[3])(const void* dout, const void* row, float prob, int64_t width, void* drow);
};
PF_DECLARE_TABLE(MoeTable, moe_table)

}  // namespace paddle_fused::kernels
