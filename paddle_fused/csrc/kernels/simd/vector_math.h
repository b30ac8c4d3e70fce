// Elementary functions of whole vectors, for */simd only. math.h has the versions for single floats.
#pragma once
#include "kernels/simd/vectors.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// max(x, bound), propagating NaN.
PF_INLINE Floats at_least(Floats x, float bound) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, all(bound), x);
#elif defined(__AVX2__)
  return _mm256_max_ps(all(bound), x);
#elif defined(PF_NEON)
  return vmaxq_f32(all(bound), x);
#else
  return x < bound ? all(bound) : x;
#endif
}

// max(x, y); x if x is NaN.
PF_INLINE Floats larger(Floats x, Floats y) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, x, y);
#elif defined(__AVX2__)
  return _mm256_max_ps(x, y);
#else
  return x > y ? x : y;
#endif
}

// `negative` where the sign bit of x is set, else `positive`.
PF_INLINE Floats by_sign(Floats x, Floats negative, Floats positive) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_blendv_ps(positive, negative, x);
#elif defined(PF_NEON)
  return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(x)), negative, positive);
#else
  return reinterpret_cast<Words>(x) >> 31 ? negative : positive;
#endif
}

// e^x for x <= 0 with a relative error of about 2^-23, like exp_fast of math.h. Below -87.7 it is zero; NaN passes
// through. The polynomial is evaluated in halves, because latency limits a loop over exponentials.
PF_INLINE Floats exp_not_positive(Floats x) {
  const Floats round = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats clamped = at_least(x, -88.0f);
  const Floats shifted = clamped * 1.44269504f + round;
  const Floats n = shifted - round;
  const Floats r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  const Floats r2 = r * r;
  const Floats high = (r * 1.9875691500e-4f + 1.3981999507e-3f) * r2 + (r * 8.3334519073e-3f + 4.1665795894e-2f);
  const Floats p = (high * r2 + (r * 1.6666665459e-1f + 5.0000001201e-1f)) * r2 + (r + 1.0f);
  // n is in the low bits of `shifted`. It becomes the exponent of 2^n, which is zero for n = -127.
  const Words power = (reinterpret_cast<Words>(shifted) + 127u) << 23;
  return p * reinterpret_cast<Floats>(power);
}

PF_INLINE Pair exp_not_positive(Pair x) { return {exp_not_positive(x.a), exp_not_positive(x.b)}; }

PF_INLINE Floats negative_magnitude(Floats x) {
  return reinterpret_cast<Floats>(reinterpret_cast<Words>(x) | 0x80000000u);
}

// silu(x) = x s(x), s the logistic function 1 / (1 + e^-x).
PF_INLINE Floats silu(Floats x) {
  const Floats e = exp_not_positive(negative_magnitude(x));
  return x * by_sign(x, e, all(1.0f)) / (e + 1.0f);
}
PF_INLINE Pair silu(Pair x) { return {silu(x.a), silu(x.b)}; }

// s(x), and 1 - s(x) without cancellation.
struct Logistics {
  Floats value, complement;
};
PF_INLINE Logistics logistic(Floats x) {
  const Floats e = exp_not_positive(negative_magnitude(x));
  const Floats larger = 1.0f / (e + 1.0f), smaller = e * larger;
  return {by_sign(x, smaller, larger), by_sign(x, larger, smaller)};
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
