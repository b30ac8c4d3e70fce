// Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019) over flat arrays, in one pass over memory:
//
//   m   = beta1 m + (1 - beta1) g
//   v   = beta2 v + (1 - beta2) g^2
//   w   = w - (decay w + step_size m / (sqrt(u) + epsilon)),     u = v, or with AMSGrad the largest v so far
//
// Bias correction is folded into the scalars. Every element is computed on its own, in float32, so the result does not
// depend on the number of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct AdamScalars {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;  // learning rate * sqrt(1 - beta2^t) / (1 - beta1^t)
  float epsilon;    // epsilon * sqrt(1 - beta2^t)
  float decay;      // learning rate * weight decay for AdamW, 0 for Adam
  bool maximize;    // go up the gradient
};

// The powers beta^t that Paddle's optimizers hold in float32 have been multiplied t times, a rounding each, which
// 1 - beta^t magnifies while t is small. Where `power` is a power of `beta` but for these roundings this is the power
// itself; else, as after a change of beta, it is `power`.
PF_EXPORT double exact_power(double beta, float power);

// The scalars of one step; beta1_power and beta2_power hold beta^t of this step.
PF_EXPORT AdamScalars adam_scalars(double beta1, double beta2, double epsilon, double learning_rate,
                                   double weight_decay, double beta1_power, double beta2_power, bool maximize);

struct AdamArray {
  void* data;
  ElementType type;
};

// All arrays but grad are updated in place. `master` holds the weights; where it is null they are read from `param`.
// `param` receives the new weights, rounded. `moment2_max` is null without AMSGrad.
struct AdamArrays {
  AdamArray param, grad, moment1, moment2, moment2_max, master;
};

PF_EXPORT void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count);

// Many parameters in one pass: each with its own scalars, its arrays of `count` elements.
struct AdamTensor {
  AdamScalars scalars;
  AdamArrays arrays;
  int64_t count;
};
PF_EXPORT void adam(const std::vector<AdamTensor>& tensors);

}  // namespace paddle_fused::kernels
