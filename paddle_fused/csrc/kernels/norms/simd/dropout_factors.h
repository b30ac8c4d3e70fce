// Dropout factors for whole vectors, for */simd only: Philox4x32-10 as in philox.h, on as many counters at a time as
// a register has 64-bit products.
#pragma once
#include "kernels/simd/vectors.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {

typedef uint64_t Longs __attribute__((vector_size(kFloats * 4)));
constexpr int kCounters = kFloats / 2;  // per register; each yields four adjacent elements, all of them a Pair
// Registers processed at a time, to hide the latency of a round.
constexpr int kCounterGroups = kFloats == 16 ? 4 : 2;
constexpr int64_t kFactorsAtATime = kCounterGroups * kPair;

PF_INLINE Longs all(uint64_t x) { return x + Longs{}; }

// Products of the lower halves. The upper halves are undefined.
PF_INLINE Longs low_products(Longs x, Longs y) {
#if defined(__AVX512F__)
  return reinterpret_cast<Longs>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<Longs>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<Longs>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
#elif defined(PF_NEON)
  return reinterpret_cast<Longs>(vmull_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(x)),
                                           vmovn_u64(reinterpret_cast<uint64x2_t>(y))));
#else
  return (x & 0xffffffffu) * (y & 0xffffffffu);
#endif
}

// Values shared by all rows of a call.
struct Dropout {
  Longs keys[10][2];
  uint64_t offset;
  uint32_t threshold;  // a word below it keeps its element
  float kept;          // the factor of kept elements
};

PF_INLINE Dropout dropout_of(double keep_probability, uint64_t seed, uint64_t offset) {
  Dropout d;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    d.keys[round][0] = all(static_cast<uint64_t>(k0));
    d.keys[round][1] = all(static_cast<uint64_t>(k1));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  d.offset = offset;
  d.threshold = static_cast<uint32_t>(keep_probability * 4294967296.0);
  d.kept = keep_probability > 0 ? static_cast<float>(1.0 / keep_probability) : 0.0f;
  return d;
}

// factors[i] for the elements [0, width) of a row, in the order of Main's Pairs: `kept` where a random word is below
// the threshold, else 0. One counter serves four adjacent elements. Its low half is the offset, its high half the
// number of (row, group of four). Writes up to the next multiple of kFactorsAtATime. keep_probability must be below
// 1.
template <typename Main>
PF_INLINE void dropout_factors(const Dropout& d, int64_t row, int64_t width, float* factors) {
  const Longs m0 = all(uint64_t{0xD2511F53u}), m1 = all(uint64_t{0xCD9E8D57u}), low = all(uint64_t{0xffffffffu});
  Longs lanes;
  for (int lane = 0; lane < kCounters; ++lane) lanes[lane] = lane;
  uint64_t counter = static_cast<uint64_t>(row * ((width + 3) / 4));
  for (int64_t i = 0; i < width; i += kFactorsAtATime) {
    Longs c0[kCounterGroups], c1[kCounterGroups], c2[kCounterGroups], c3[kCounterGroups];
    for (int g = 0; g < kCounterGroups; ++g) {
      c0[g] = all(d.offset);
      c1[g] = all(d.offset >> 32);
      c2[g] = all(counter) + lanes;
      c3[g] = c2[g] >> 32;
      counter += kCounters;
    }
    for (int round = 0; round < 10; ++round) {
      for (int g = 0; g < kCounterGroups; ++g) {
        const Longs p0 = low_products(c0[g], m0), p1 = low_products(c2[g], m1);
        c0[g] = (p1 >> 32) ^ c1[g] ^ d.keys[round][0];
        c2[g] = (p0 >> 32) ^ c3[g] ^ d.keys[round][1];
        c1[g] = p1;
        c3[g] = p0;
      }
    }
    for (int g = 0; g < kCounterGroups; ++g) {
      // Words 0 and 2 of every counter are the even elements, 1 and 3 the odd ones.
      const Words even = reinterpret_cast<Words>((c0[g] & low) | (c2[g] << 32));
      const Words odd = reinterpret_cast<Words>((c1[g] & low) | (c3[g] << 32));
      const Words kept = reinterpret_cast<Words>(all(d.kept));
      const Pair v{reinterpret_cast<Floats>(reinterpret_cast<Words>(even < d.threshold) & kept),
                   reinterpret_cast<Floats>(reinterpret_cast<Words>(odd < d.threshold) & kept)};
      store<float>(factors + i + g * kPair, kIsEvenOdd<Main> ? v : in_order(v), Whole{}, Cached{});
    }
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
