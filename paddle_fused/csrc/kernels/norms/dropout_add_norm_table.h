#pragma once
#include <cstdint>

#include "kernels/norms/dropout_add_norm.h"

namespace paddle_fused::kernels {

// What the rows add to the gradients of weight, bias and layerscale: zeros before, dropout_add_norm_row(width) each.
// bias and layerscale may be nullptr: not wanted.
struct NormVectorSums {
  float *weight, *bias, *layerscale;
};

// Floats of workspace that a call needs: two rows, each in whole steps of the random numbers of any target.
constexpr int64_t kDropoutAddNormRows = 2;
static inline int64_t dropout_add_norm_row(int64_t width) { return (width + 127) / 128 * 128; }

// Indexed by the types of x0, by whether pre is float32 whatever x0 is, and by whether the weight is. Each works on the
// rows from `begin` to `end`; all pointers are to the first row of the tensors. stream: the outputs pass by the caches.
struct DropoutAddNormTable {
  void (*forward[3][2][2])(const DropoutAddNorm& problem, int64_t begin, int64_t end, float* workspace, bool stream,
                           void* out, void* pre, uint8_t* mask, float* mean, float* rstd);
  void (*backward[3][2][2])(const DropoutAddNorm& problem, int64_t begin, int64_t end, float* workspace, bool stream,
                            const void* out_grad, const void* pre_grad, const void* pre, const float* mean,
                            const float* rstd, const DropoutAddNormGradients& gradients, const NormVectorSums& sums);
};
PF_DECLARE_TABLE(DropoutAddNormTable, dropout_add_norm_table)

}  // namespace paddle_fused::kernels
