#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType. One token: num_heads rows of head_dim elements share one row of cos and sin.
struct RotaryTable {
  using Run = void (*)(const void* x, const void* cos, const void* sin, int64_t num_heads, int64_t head_dim, void* y);
  Run forward[3];
  Run backward[3];
};
PF_DECLARE_TABLE(RotaryTable, rotary_table)

}  // namespace paddle_fused::kernels
