// Elementary functions and sums for */simd only: branch-free, so loops over them vectorize on every target.
#pragma once
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// e^x with a relative error of about 2^-23: x = n ln2 + r with |r| <= ln2 / 2, then a polynomial in r with the
// coefficients of Cephes' expf. Results below 2.4e-38 are zero, so subnormals do not occur. +inf and NaN pass
// through: NaN fails all comparisons.
static inline float exp_fast(float x) {
  const float above = x < -86.5f ? -86.5f : x;
  const float clamped = above > 88.8f ? 88.8f : above;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, because n = 128 exceeds the largest exponent. n is in the low bits of `shifted`, which avoids
  // a conversion that would be undefined for NaN.
  const float half_power = bits_to_float((float_to_bits(shifted) - float_to_bits(kRound) + 126) << 23);
  const float value = p * half_power * 2.0f;
  return x < -86.5f ? 0.0f : value;
}

// The logistic function s(x) = 1 / (1 + e^-x), and 1 - s(x) without cancellation.
struct Logistic {
  float value, complement;
};
static inline Logistic logistic(float x) {
  const float e = exp_fast(x < 0.0f ? x : -x);
  const float larger = 1.0f / (1.0f + e), smaller = e * larger;
  return {x < 0.0f ? smaller : larger, x < 0.0f ? larger : smaller};
}

// Sum of term(0) + ... + term(count - 1). Blocks of 512 are summed in float lanes, the blocks in double, so the error
// does not grow with the length of a row.
template <typename Term>
static inline double sum(int64_t count, const Term& term) {
  constexpr int64_t kBlock = 512;
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    float partial = 0.0f;
#pragma omp simd reduction(+ : partial)
    for (int64_t i = begin; i < end; ++i) partial += term(i);
    total += static_cast<double>(partial);
  }
  return total;
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
