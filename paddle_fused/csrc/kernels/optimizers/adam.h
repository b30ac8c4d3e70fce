// Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019) over flat arrays, in one pass over memory:
//
//   m   = beta1 m + (1 - beta1) g
//   v   = beta2 v + (1 - beta2) g^2
//   w   = w - (decay w + step_size m / (sqrt(u) + epsilon)),     u = v, or with AMSGrad the largest v so far
//
// Bias correction is folded into the scalars. Elements are computed independently in float32, so the result does not
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
  bool maximize;    // gradient ascent
};

// Paddle's optimizers keep the powers beta^t in float32, multiplied and rounded t times. 1 - beta^t amplifies these
// roundings while t is small. If `power` is a power of `beta` up to these roundings, the result is the exact power.
// Otherwise, such as after a change of beta, the result is `power`.
PF_EXPORT double exact_power(double beta, float power);

// The scalars of one step. beta1_power and beta2_power are beta^t for this step.
PF_EXPORT AdamScalars adam_scalars(double beta1, double beta2, double epsilon, double learning_rate,
                                   double weight_decay, double beta1_power, double beta2_power, bool maximize);

struct AdamArray {
  void* data;
  ElementType type;
};

// All arrays except grad are updated in place. `master` has the weights; if it is null, they are read from `param`.
// `param` receives the new weights, rounded. `moment2_max` is null without AMSGrad.
struct AdamArrays {
  AdamArray param, grad, moment1, moment2, moment2_max, master;
};

PF_EXPORT void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count);

// Many parameters in one pass, each with its own scalars and arrays of `count` elements.
struct AdamTensor {
  AdamScalars scalars;
  AdamArrays arrays;
  int64_t count;
};
PF_EXPORT void adam(const std::vector<AdamTensor>& tensors);

}  // namespace paddle_fused::kernels
