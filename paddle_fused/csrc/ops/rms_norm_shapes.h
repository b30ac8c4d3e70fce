// Shapes that pf_rms_norm and pf_add_rms_norm share: the norm is taken over the dimensions that the weight has.
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
                 "; accepted: a weight of the shape of x's last dimensions, none of them 0.");
}

// Also of shapes that do not go together: Paddle 3.3.1 ends the process if shape inference throws while a program is
// captured, so what does not fit is refused when it runs.
inline Shape rstd_shape(Shape x, const Shape& weight) {
  std::fill(x.end() - std::min(weight.size(), x.size()), x.end(), 1);
  return x;
}

}  // namespace paddle_fused::ops
