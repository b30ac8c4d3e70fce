#pragma once
#include <cstdint>

#include "kernels/norms/dropout_add_norm.h"

namespace paddle_fused::kernels {

// The contributions of rows to the gradients of weight, bias and layerscale, dropout_add_norm_row(width) elements
// each, initially zero. bias and layerscale may be nullptr if they are not needed.
struct NormVectorSums {
  float *weight, *bias, *layerscale;
};

// Workspace of a call in rows of floats. A row is rounded up to whole steps of any target's random numbers.
constexpr int64_t kDropoutAddNormRows = 2;
static inline int64_t dropout_add_norm_row(int64_t width) { return (width + 127) / 128 * 128; }

// Indexed by the type of x0, by whether pre is float32 regardless of x0, and by whether weight is. Each processes
// rows `begin` to `end`; all pointers are to the first row of the tensors. stream: the outputs bypass the caches.
struct DropoutAddNormTable {
  void (*forward[3][2][2])(const DropoutAddNorm& problem, int64_t begin, int64_t end, float* workspace, bool stream,
                           void* out, void* pre, uint8_t* mask, float* mean, float* rstd);
  void (*backward[3][2][2])(const DropoutAddNorm& problem, int64_t begin, int64_t end, float* workspace, bool stream,
                            const void* out_grad, const void* pre_grad, const void* pre, const float* mean,
                            const float* rstd, const DropoutAddNormGradients& gradients, const NormVectorSums& sums);
};
PF_DECLARE_TABLE(DropoutAddNormTable, dropout_add_norm_table)

}  // namespace paddle_fused::kernels
