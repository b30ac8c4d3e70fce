#include "kernels/linear_cross_entropy_table.h"
#include "kernels/simd/math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

void join(const float* logits, int64_t count, float* maximum, double* total) {
  const float before = *maximum;
  float after = before;
#pragma omp simd reduction(max : after)
  for (int64_t i = 0; i < count; ++i) after = logits[i] > after ? logits[i] : after;
  const double added = sum(count, [=](int64_t i) { return exp_fast(logits[i] - after); });
  *total = *total * static_cast<double>(exp_fast(before - after)) + added;
  *maximum = after;
}

void gradient(float* logits, int64_t count, float lse, float dlse) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) logits[i] = exp_fast(logits[i] - lse) * dlse;
}

constexpr LinearCrossEntropyTable kTable = {join, gradient};

}  // namespace

const LinearCrossEntropyTable& linear_cross_entropy_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
