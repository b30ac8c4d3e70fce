// Conversions between elements and float, for */simd only: branch-free, so loops over them vectorize.
#pragma once
#include <cstdint>

#include "kernels/elements.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

static inline float bits_to_float(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
static inline uint32_t float_to_bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}

static inline float to_float(float v) { return v; }
static inline float to_float(BFloat16 v) { return bits_to_float(static_cast<uint32_t>(v.bits) << 16); }
#if defined(PF_NEON)
// The processor's conversions.
static inline float to_float(Float16 v) {
  __fp16 half;
  __builtin_memcpy(&half, &v, 2);
  return half;
}
#else
static inline float to_float(Float16 v) {
  const uint32_t magnitude = v.bits & 0x7fff;
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16;
  // Subnormal halves are integer multiples of 2^-24. They are never converted through a subnormal float: in calls of
  // old operators, including GradScaler, Paddle makes the processor flush these to zero.
  const uint32_t subnormal = float_to_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + 0x38000000u;
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return bits_to_float(sign | (magnitude >= 0x7c00u ? special : finite));
}
#endif

static inline void from_float(float f, float* out) { *out = f; }
static inline void from_float(float f, BFloat16* out) {
  const uint32_t u = float_to_bits(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40;
  out->bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
#if defined(PF_NEON)
static inline void from_float(float f, Float16* out) {
  const __fp16 half = f;
  __builtin_memcpy(out, &half, 2);
}
#else
static inline void from_float(float f, Float16* out) {
  const uint32_t u = float_to_bits(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  // Normal halves: rebias and round to nearest even. Subnormal halves: adding 0.5 rounds.
  const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
  const uint32_t subnormal = float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000u;
  const uint32_t finite = a < 0x38800000u ? subnormal : normal;
  const uint32_t infinite = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  out->bits = static_cast<uint16_t>(sign | (a >= 0x477ff000u ? infinite : finite));
}
#endif

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
