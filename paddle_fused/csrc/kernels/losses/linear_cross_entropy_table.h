#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct LinearCrossEntropyTable {
  // With m = *maximum and s = *total so far: m' = max(m, logits), s' = s exp(m - m') + sum of exp(logits - m').
  void (*join)(const float* logits, int64_t count, float* maximum, double* total);
  // logits[i] = exp(logits[i] - lse) * dlse
  void (*gradient)(float* logits, int64_t count, float lse, float dlse);
  // logits[i] = scale * (softmax(logits)[i] - (i is the label)); returns the loss.
  float (*loss_and_gradient)(float* logits, int64_t count, int64_t label, float scale);
};
PF_DECLARE_TABLE(LinearCrossEntropyTable, linear_cross_entropy_table)

}  // namespace paddle_fused::kernels
