// Rotary position embedding. x is rotated in pairs (a, b) of its last dimension, (x[i], x[i + D / 2]) in mode half
// and (x[2 i], x[2 i + 1]) in mode interleave. With the cos and sin at the positions of a and b:
//   ya = a cos_a - b sin_a,         yb = b cos_b + a sin_b
//   dxa = dya cos_a + dyb sin_b,    dxb = dyb cos_b - dya sin_a
//   dcos_a = sum dya a,  dsin_a = -sum dya b,  dcos_b = sum dyb b,  dsin_b = sum dyb a
// The sums are over the rows of x that share a row of cos and sin.
// All tensors are dense and have `type`. The arithmetic is float32 with one rounding; sums are in double.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

enum class RotaryMode { kHalf, kInterleave };

// x, y, dx, dy: [dims, head_dim]; cos, sin, dcos, dsin: [angle_dims, head_dim]. angle_dims are 1 or equal to dims.
struct RotaryShape {
  int64_t dims[3];
  int64_t angle_dims[3];
  int64_t head_dim;
  RotaryMode mode;
};

PF_EXPORT void rotary_forward(ElementType type, const RotaryShape& shape, const void* x, const void* cos,
                              const void* sin, void* y);
PF_EXPORT void rotary_backward(ElementType type, const RotaryShape& shape, const void* dy, const void* cos,
                               const void* sin, void* dx);

// Bit-identical for any number of threads: each row is summed in a fixed order.
PF_EXPORT void rotary_angle_gradients(ElementType type, const RotaryShape& shape, const void* x, const void* dy,
                                      void* dcos, void* dsin);

}  // namespace paddle_fused::kernels
