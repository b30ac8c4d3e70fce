#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// sum[ElementType]
struct SquaredNormTable {
  float (*sum[3])(const void* x, int64_t count);
};
PF_DECLARE_TABLE(SquaredNormTable, squared_norm_table)

}  // namespace paddle_fused::kernels
