#include "kernels/losses/linear_cross_entropy_table.h"
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

float loss_and_gradient(float* logits, int64_t count, int64_t label, float scale) {
  const float target = logits[label];
  float maximum = target;
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < count; ++i) maximum = logits[i] > maximum ? logits[i] : maximum;
  // The label is excluded from the sum, because softmax - 1 would cancel if the other probabilities are small.
  logits[label] = -__builtin_inff();
  const double others = sum(count, [=](int64_t i) { return logits[i] = exp_fast(logits[i] - maximum); });
  const double all = others + exp_fast(target - maximum);
  const float total = static_cast<float>(all);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) logits[i] = logits[i] / total * scale;
  logits[label] = static_cast<float>(-others / all) * scale;
  return maximum + static_cast<float>(__builtin_log(all)) - target;
}

constexpr LinearCrossEntropyTable kTable = {join, gradient, loss_and_gradient};

}  // namespace

const LinearCrossEntropyTable& linear_cross_entropy_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
