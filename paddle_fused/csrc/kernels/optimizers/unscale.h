// Divides gradients by the loss scale and checks for Inf and NaN.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// y[i] = x[i] * factor for any x, computed in float32 and rounded once. Returns whether all of x is finite. y may be
// x.
PF_EXPORT bool unscale(ElementType type, const void* x, float factor, void* y, int64_t count);

}  // namespace paddle_fused::kernels
