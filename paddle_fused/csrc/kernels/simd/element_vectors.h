// Elements in the lanes of a vector, for */simd only: to_float and from_float of load_store.h written with vectors,
// because compilers do not vectorize short loops.
#pragma once
#include <cstdint>

#include "kernels/simd/load_store.h"
#include "kernels/simd/tile_matmul.h"

#if defined(PF_NEON)
#include <arm_neon.h>
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {

typedef uint32_t BitsVector __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfBitsVector __attribute__((vector_size(kLanes * 2)));
typedef uint16_t UnalignedHalfBitsVector __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

static inline Vector from_bits(BitsVector bits) { return reinterpret_cast<Vector>(bits); }
static inline BitsVector to_bits(Vector v) { return reinterpret_cast<BitsVector>(v); }
static inline BitsVector load_bits(const void* x) {
  return __builtin_convertvector(*static_cast<const UnalignedHalfBitsVector*>(x), BitsVector);
}
static inline void store_bits(void* x, BitsVector bits) {
  *static_cast<UnalignedHalfBitsVector*>(x) = __builtin_convertvector(bits, HalfBitsVector);
}

static inline Vector load_elements(const float* x) { return load(x); }
static inline Vector load_elements(const BFloat16* x) { return from_bits(load_bits(x) << 16); }
#if defined(PF_NEON)
static inline Vector load_elements(const Float16* x) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits)));
}
#else
static inline Vector load_elements(const Float16* x) {
  const BitsVector bits = load_bits(x), magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
  const IntVector number = reinterpret_cast<IntVector>(magnitude);
  const BitsVector subnormal = to_bits(__builtin_convertvector(number, Vector) * 0x1p-24f);
  const BitsVector normal = (magnitude << 13) + 0x38000000u, special = (magnitude << 13) | 0x7f800000u;
  const BitsVector finite = number < 0x0400 ? subnormal : normal;
  return from_bits(sign | (number >= 0x7c00 ? special : finite));
}
#endif

// Rounded to bfloat16, in the lower halves.
static inline BitsVector bfloat16_bits(Vector v) {
  const BitsVector u = to_bits(v), nan = (u >> 16) | 0x40;
  const BitsVector rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return v == v ? rounded : nan;
}

static inline void store_elements(float* x, Vector v) { store(x, v); }
static inline void store_elements(BFloat16* x, Vector v) { store_bits(x, bfloat16_bits(v)); }
#if defined(PF_NEON)
static inline void store_elements(Float16* x, Vector v) {
  vst1_u16(&x->bits, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
#else
static inline void store_elements(Float16* x, Vector v) {
  const BitsVector u = to_bits(v), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  const IntVector magnitude = reinterpret_cast<IntVector>(a);
  const BitsVector normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
  const BitsVector subnormal = to_bits(from_bits(a) + 0.5f) - 0x3f000000u;
  const BitsVector finite = magnitude < 0x38800000 ? subnormal : normal;
  const BitsVector infinite = magnitude > 0x7f800000 ? BitsVector{} + 0x7e00u : BitsVector{} + 0x7c00u;
  store_bits(x, sign | (magnitude >= 0x477ff000 ? infinite : finite));
}
#endif

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
