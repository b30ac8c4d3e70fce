#pragma once
#include <cstdint>

#include "kernels/dropout_add_norm.h"

namespace paddle_fused::kernels {

// The vectors [width] in float32; bias and layerscale may be nullptr.
struct NormVectors {
  const float *weight, *bias, *layerscale;
};

// What the rows add to the gradients of weight, bias and layerscale; each [width].
struct NormVectorSums {
  float *weight, *bias, *layerscale;
};

// Floats of workspace that a call needs: three rows.
constexpr int64_t kDropoutAddNormRows = 3;
static inline int64_t dropout_add_norm_row(int64_t width) { return (width + 15) / 16 * 16; }

// Each works on the rows from `begin` to `end`; all pointers are to the first row of the tensors.
struct DropoutAddNormTable {
  void (*forward)(const DropoutAddNorm& problem, const NormVectors& vectors, int64_t begin, int64_t end,
                  float* workspace, void* out, void* pre, uint8_t* mask, float* mean, float* rstd);
  void (*backward)(const DropoutAddNorm& problem, const NormVectors& vectors, int64_t begin, int64_t end,
                   float* workspace, const void* out_grad, const void* pre_grad, const void* pre, const float* mean,
                   const float* rstd, const DropoutAddNormGradients& gradients, const NormVectorSums& sums);
};
PF_DECLARE_TABLE(DropoutAddNormTable, dropout_add_norm_table)

}  // namespace paddle_fused::kernels
