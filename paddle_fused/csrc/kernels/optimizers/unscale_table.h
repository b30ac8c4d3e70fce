#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType.
struct UnscaleTable {
  bool (*run[3])(const void* x, float factor, void* y, int64_t count);
};
PF_DECLARE_TABLE(UnscaleTable, unscale_table)

}  // namespace paddle_fused::kernels
