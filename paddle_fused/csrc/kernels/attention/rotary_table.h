#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Consecutive rows of x and y, and their rows of cos and sin: angle_stride elements apart, or 0 for a shared row.
struct RotaryRun {
  const void* x;
  const void* cos;
  const void* sin;
  void* y;
  int64_t rows, head_dim, angle_stride;
  bool stream;  // y bypasses the caches
};

// Adds the products of consecutive rows of x and dy to the head_dim sums of dcos and dsin.
struct RotarySums {
  const void* x;
  const void* dy;
  int64_t rows, head_dim;
  double* dcos;
  double* dsin;
};

// Indexed by RotaryMode and ElementType.
struct RotaryTable {
  void (*forward[2][3])(const RotaryRun& run);
  void (*backward[2][3])(const RotaryRun& run);
  void (*add_angle_gradients[2][3])(const RotarySums& sums);
  void (*store[3])(const double* sums, int64_t count, void* out);
};
PF_DECLARE_TABLE(RotaryTable, rotary_table)

}  // namespace paddle_fused::kernels
