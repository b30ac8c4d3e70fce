// Shapes for pf_rms_norm and pf_add_rms_norm: the norm is computed over the dimensions of the weight.
#pragma once
#include <algorithm>
#include <string>

#include "ops/operator.h"

namespace paddle_fused::ops {

inline void check_weight_shape(const char* op, const Shape& x, const Shape& weight) {
  const bool is_tail = !weight.empty() && weight.size() <= x.size() &&
                       std::equal(weight.rbegin(), weight.rend(), x.rbegin()) &&
                       std::find(weight.begin(), weight.end(), 0) == weight.end();
  if (is_tail) return;
  refuse(op, "x has shape " + text(x) + " and weight " + text(weight) +
                 "; accepted: a non-empty weight with the shape of x's last dimensions.");
}

// Also accepts shapes that do not match, which are rejected at run time: Paddle 3.3.1 terminates the process if shape
// inference throws while a program is captured.
inline Shape rstd_shape(Shape x, const Shape& weight) {
  std::fill(x.end() - std::min(weight.size(), x.size()), x.end(), 1);
  return x;
}

}  // namespace paddle_fused::ops
