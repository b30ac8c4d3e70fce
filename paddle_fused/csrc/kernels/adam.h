// Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019) over a flat array, in one pass over memory:
//
//   m   = beta1 m + (1 - beta1) g
//   v   = beta2 v + (1 - beta2) g^2
//   w   = decay w - step_size m / (sqrt(u) + epsilon),     u = v, or with AMSGrad the largest v so far
//
// Bias correction is folded into the scalars. Every element is computed on its own, in float32, so the result does not
// depend on the number of threads.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct AdamScalars {
  float beta1, beta2;
  float step_size;  // learning rate * sqrt(1 - beta2^t) / (1 - beta1^t)
  float epsilon;    // epsilon * sqrt(1 - beta2^t)
  float decay;      // 1 - learning rate * weight decay for AdamW, 1 for Adam
};

// All arrays are updated in place. `master` holds the float32 weights; where it is null the weights are read from
// `param`. `param` receives the new weights rounded to its type. `moment2_max` is null without AMSGrad.
struct AdamArrays {
  ElementType param_type, grad_type;
  void* param;
  const void* grad;
  float* moment1;
  float* moment2;
  float* moment2_max;
  float* master;
};

PF_EXPORT void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count);

}  // namespace paddle_fused::kernels
