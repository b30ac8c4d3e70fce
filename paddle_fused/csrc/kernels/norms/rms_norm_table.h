#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// The width rounded up to whole registers of any target.
constexpr int64_t rms_norm_sums(int64_t width) { return (width + 31) / 32 * 32; }

// Indexed by ElementType, then by whether gamma is float32 regardless of x. Each processes `rows` consecutive rows.
// again: memory for a row of x. stream: the outputs bypass the caches. dgamma has rms_norm_sums(width) elements,
// initially zero, to which backward adds.
struct RmsNormTable {
  void (*forward[3][2])(const void* x, const void* gamma, float epsilon, int64_t rows, int64_t width, bool stream,
                        void* y, float* rstd);
  void (*add_forward[3])(const void* x, const void* residual, const void* gamma, float epsilon, int64_t rows,
                         int64_t width, bool stream, void* again, void* y, void* sum, float* rstd);
  void (*backward[3][2])(const void* dy, const void* x, const float* rstd, const void* gamma, const void* dsum,
                         int64_t rows, int64_t width, bool stream, void* dx, void* dresidual, float* dgamma);
};
PF_DECLARE_TABLE(RmsNormTable, rms_norm_table)

}  // namespace paddle_fused::kernels
