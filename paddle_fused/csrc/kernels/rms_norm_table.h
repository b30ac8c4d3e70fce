#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType, then by whether gamma is float32 whatever x is; each entry works on `rows` consecutive rows.
// backward adds to dgamma.
struct RmsNormTable {
  void (*forward[3][2])(const void* x, const void* gamma, float epsilon, int64_t rows, int64_t width, void* y,
                        float* rstd);
  void (*add_forward[3])(const void* x, const void* residual, const void* gamma, float epsilon, int64_t rows,
                         int64_t width, void* y, void* sum, float* rstd);
  void (*backward[3][2])(const void* dy, const void* x, const float* rstd, const void* gamma, const void* dsum,
                         int64_t rows, int64_t width, void* dx, float* dgamma);
};
PF_DECLARE_TABLE(RmsNormTable, rms_norm_table)

}  // namespace paddle_fused::kernels
