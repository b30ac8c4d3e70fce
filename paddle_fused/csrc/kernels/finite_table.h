#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType.
struct FiniteTable {
  bool (*all_finite[3])(const void* x, int64_t count);
  bool (*unscale[3])(const void* x, float factor, void* y, int64_t count);
};
PF_DECLARE_TABLE(FiniteTable, finite_table)

}  // namespace paddle_fused::kernels
