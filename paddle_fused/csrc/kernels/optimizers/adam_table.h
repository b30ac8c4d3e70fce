#pragma once
#include <cstdint>

#include "kernels/optimizers/adam.h"

namespace paddle_fused::kernels {

// The elements [begin, end).
struct AdamTable {
  void (*run)(const AdamScalars& scalars, const AdamArrays& arrays, int64_t begin, int64_t end);
};
PF_DECLARE_TABLE(AdamTable, adam_table)

}  // namespace paddle_fused::kernels
