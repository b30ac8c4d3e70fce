// SwiGLU: y = silu(gate) * up with silu(a) = a * s(a), s the logistic function.
//   dup = dy * silu(gate),  dgate = dy * up * s * (1 + gate * (1 - s))
// gate and up: rows of `width` elements that lie `stride` elements apart (2 * width when they are the two halves of
// one tensor); y and dy: [rows, width], dense. All have `type`; arithmetic in float32, one rounding.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct SwigluShape {
  int64_t rows, width, stride;
};

PF_EXPORT void swiglu_forward(ElementType type, const SwigluShape& shape, const void* gate, const void* up, void* y);

// dgate and dup are laid out like gate and up; either may be null.
PF_EXPORT void swiglu_backward(ElementType type, const SwigluShape& shape, const void* gate, const void* up,
                               const void* dy, void* dgate, void* dup);

}  // namespace paddle_fused::kernels
