// GELU: y = x * share(x), where share is the standard normal CDF or its approximation
//   s(2 sqrt(2 / pi) (x + 0.044715 x^3)), s the logistic function: 0.5 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
//   dx = dy * (share(x) + x * share'(x))
// Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016. Tensors have `count` elements of `type`. The arithmetic is
// float32 with one rounding.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

enum class GeluForm { kNormal, kTanh };

// y may be x.
PF_EXPORT void gelu_forward(GeluForm form, ElementType type, int64_t count, const void* x, void* y);
// dx may be x or dy.
PF_EXPORT void gelu_backward(GeluForm form, ElementType type, int64_t count, const void* x, const void* dy, void* dx);

}  // namespace paddle_fused::kernels
