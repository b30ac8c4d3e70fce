// Rotary position embedding, the "half" form (RotaryMul): with h = head_dim / 2 and the pair (a, b) = (x[i], x[i + h]),
//   y[i] = a * cos[i] - b * sin[i],  y[i + h] = b * cos[i + h] + a * sin[i + h]
//   dx[i] = da * cos[i] + db * sin[i + h],  dx[i + h] = db * cos[i + h] - da * sin[i]
// x, y, dx, dy: [batch, seq_len, num_heads, head_dim]; cos, sin: [seq_len, head_dim], both halves as given. All have
// `type`; arithmetic in float32, one rounding.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct RotaryShape {
  int64_t batch, seq_len, num_heads, head_dim;
};

PF_EXPORT void rotary_forward(ElementType type, const RotaryShape& shape, const void* x, const void* cos,
                              const void* sin, void* y);
PF_EXPORT void rotary_backward(ElementType type, const RotaryShape& shape, const void* dy, const void* cos,
                               const void* sin, void* dx);

}  // namespace paddle_fused::kernels
