// Scale, dropout, residual addition and norm, in one pass over each row of `width` elements:
//
//   z = round(r * x0 * rowscale * layerscale + residual)        r: 1 / (1 - p) with probability 1 - p, else 0
//   layer norm   out = (z - mean(z)) * rstd * weight + bias     rstd = 1 / sqrt(mean((z - mean(z))^2) + epsilon)
//   RMS norm     out = round(z * rstd) * weight + bias          rstd = 1 / sqrt(mean(z^2) + epsilon)
//
// The norm is computed from the rounded z, the residual input of the next layer. The second round() is to the
// weight's type, as in rms_norm.h. The arithmetic is float32. r is a factor, not a selection, so a dropped infinite
// x0 becomes NaN.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };

struct DropoutAddNorm {
  NormKind norm;
  ElementType type;         // of x0, rowscale, layerscale and out
  ElementType pre_type;     // of residual and z: `type` or float32
  ElementType weight_type;  // of weight and bias: `type` or float32
  int64_t rows, width;
  const void* x0;
  const void* residual;    // nullptr: none; also for the next three
  const void* bias;
  const void* rowscale;    // [rows]
  const void* layerscale;  // [width]
  const void* weight;
  float epsilon;
  // The factor r of an element depends only on these three and its position (Philox4x32-10).
  double keep_probability = 1;
  uint64_t seed = 0, offset = 0;
};

// mask: one byte per element, 1 where the element is kept; nullptr: not needed. RMS norm neither writes nor reads
// mean.
PF_EXPORT void dropout_add_norm_forward(const DropoutAddNorm& problem, void* out, void* pre, uint8_t* mask,
                                        float* mean, float* rstd);

// Each has the type of the corresponding tensor; nullptr: not needed.
struct DropoutAddNormGradients {
  void *x0, *residual, *weight, *bias, *rowscale, *layerscale;
};

// out_grad and pre_grad may be nullptr for a zero gradient. Bit-identical for any number of threads.
PF_EXPORT void dropout_add_norm_backward(const DropoutAddNorm& problem, const void* out_grad, const void* pre_grad,
                                         const void* pre, const float* mean, const float* rstd,
                                         const DropoutAddNormGradients& gradients);

}  // namespace paddle_fused::kernels
