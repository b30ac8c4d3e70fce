#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// run[from][to], indexed by ElementType.
struct CastTable {
  void (*run[3][3])(const void* x, void* y, int64_t count);
};
PF_DECLARE_TABLE(CastTable, cast_table)

}  // namespace paddle_fused::kernels
