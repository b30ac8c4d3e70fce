// Rows of tensors in vector registers, for */simd only: loads, stores and roundings of whole vectors, for kernels
// limited by memory bandwidth. The unit is a Pair of float vectors, because one register holds as many 16-bit
// elements.
//
// Where the order of elements does not matter, bfloat16 is read as the even elements (shifted) and the odd elements
// (masked), which needs no shuffles. `Main` is the element type that determines the order in a kernel. Tensors of
// other types are brought into this order.
#pragma once
#include <cstdint>

#include "kernels/shuffle.h"
#include "kernels/simd/load_store.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(PF_NEON)
#include <arm_neon.h>
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {

#if defined(__AVX512F__)
constexpr int kFloats = 16;
#elif defined(__AVX2__)
constexpr int kFloats = 8;
#else
constexpr int kFloats = 4;
#endif
constexpr int kPair = 2 * kFloats;

typedef float Floats __attribute__((vector_size(kFloats * 4)));
typedef uint32_t Words __attribute__((vector_size(kFloats * 4)));
typedef float UnalignedFloats __attribute__((vector_size(kFloats * 4), aligned(4), may_alias));
typedef uint32_t UnalignedWords __attribute__((vector_size(kFloats * 4), aligned(2), may_alias));

#define PF_MEMBER inline __attribute__((always_inline))
#define PF_INLINE static PF_MEMBER

// Subtracting zero, unlike adding it, preserves every value, so the compiler can remove it.
PF_INLINE Floats all(float f) { return f - Floats{}; }

template <typename T, typename U>
constexpr bool kIsSame = false;
template <typename T>
constexpr bool kIsSame<T, T> = true;

struct Pair {
  Floats a, b;
};
PF_INLINE Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
PF_INLINE Pair operator-(Pair x, Pair y) { return {x.a - y.a, x.b - y.b}; }
PF_INLINE Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
PF_INLINE Pair operator+(Pair x, float y) { return {x.a + y, x.b + y}; }
PF_INLINE Pair operator-(Pair x, float y) { return {x.a - y, x.b - y}; }
PF_INLINE Pair operator*(Pair x, float y) { return {x.a * y, x.b * y}; }

// The even and the odd elements of a Pair, in an internal order, and back: one shuffle each.
PF_INLINE Pair split(Pair v) {
#if defined(__AVX512F__)
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30),
          PF_SHUFFLE(v.a, v.b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31)};
#elif defined(__AVX2__)
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 8, 10, 4, 6, 12, 14),
          PF_SHUFFLE(v.a, v.b, 1, 3, 9, 11, 5, 7, 13, 15)};
#else
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 4, 6), PF_SHUFFLE(v.a, v.b, 1, 3, 5, 7)};
#endif
}
PF_INLINE Pair join(Pair v) {
#if defined(__AVX512F__)
  return {PF_SHUFFLE(v.a, v.b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
          PF_SHUFFLE(v.a, v.b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)};
#elif defined(__AVX2__)
  return {PF_SHUFFLE(v.a, v.b, 0, 8, 1, 9, 4, 12, 5, 13),
          PF_SHUFFLE(v.a, v.b, 2, 10, 3, 11, 6, 14, 7, 15)};
#else
  return {PF_SHUFFLE(v.a, v.b, 0, 4, 1, 5), PF_SHUFFLE(v.a, v.b, 2, 6, 3, 7)};
#endif
}

// Even and odd elements of a Pair in memory order, and back.
PF_INLINE Pair even_odd(Pair v) {
#if defined(__AVX512F__)
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          PF_SHUFFLE(v.a, v.b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
#elif defined(__AVX2__)
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 4, 6, 8, 10, 12, 14),
          PF_SHUFFLE(v.a, v.b, 1, 3, 5, 7, 9, 11, 13, 15)};
#else
  return {PF_SHUFFLE(v.a, v.b, 0, 2, 4, 6), PF_SHUFFLE(v.a, v.b, 1, 3, 5, 7)};
#endif
}
PF_INLINE Pair in_order(Pair v) {
#if defined(__AVX512F__)
  return {PF_SHUFFLE(v.a, v.b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          PF_SHUFFLE(v.a, v.b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
#elif defined(__AVX2__)
  return {PF_SHUFFLE(v.a, v.b, 0, 8, 1, 9, 2, 10, 3, 11),
          PF_SHUFFLE(v.a, v.b, 4, 12, 5, 13, 6, 14, 7, 15)};
#else
  return {PF_SHUFFLE(v.a, v.b, 0, 4, 1, 5), PF_SHUFFLE(v.a, v.b, 2, 6, 3, 7)};
#endif
}

// The Main of kernels that read both float32 and bfloat16 tensors.
struct BFloat16BesideFloat {};

template <typename Main>
constexpr bool kIsEvenOdd = false;
template <>
inline constexpr bool kIsEvenOdd<BFloat16> = true;
template <>
inline constexpr bool kIsEvenOdd<BFloat16BesideFloat> = true;

// The Main of a kernel whose tensors have types T and Others, each of which is T or float.
template <typename T, typename... Others>
struct Mixed {
  using Main = T;
};
template <typename... Others>
struct Mixed<BFloat16, float, Others...> {
  using Main = BFloat16BesideFloat;
};
template <typename... Others>
struct Mixed<BFloat16, BFloat16, Others...> : Mixed<BFloat16, Others...> {};
template <typename T, typename... Others>
using MainOf = typename Mixed<T, Others...>::Main;

// ---- number of valid elements of a Pair: all, or the first `count`; the rest are zeros that are not stored

struct Whole {};
struct Part {
  int64_t count;
};

// ---- loads

PF_INLINE Pair load_own_order(const float* p) {
  return {*reinterpret_cast<const UnalignedFloats*>(p), *reinterpret_cast<const UnalignedFloats*>(p + kFloats)};
}
PF_INLINE Pair load_own_order(const BFloat16* p) {
  const Words both = *reinterpret_cast<const UnalignedWords*>(p);
  return {reinterpret_cast<Floats>(both << 16), reinterpret_cast<Floats>(both & 0xffff0000u)};
}
PF_INLINE Pair load_own_order(const Float16* p) {
#if defined(__AVX512F__)
  return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
          _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kFloats)))};
#elif defined(__AVX2__)
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kFloats)))};
#elif defined(PF_NEON)
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&p->bits));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
#else
  float floats[kPair];
  for (int i = 0; i < kPair; ++i) floats[i] = to_float(p[i]);
  return load_own_order(floats);
#endif
}

template <typename Main, typename T>
PF_INLINE Pair load(const T* p, Whole) {
  const Pair v = load_own_order(p);
  return kIsEvenOdd<Main> && !kIsEvenOdd<T> ? even_odd(v) : v;
}
template <typename Main, typename T>
PF_INLINE Pair load(const T* p, Part part) {
  T elements[kPair] = {};
  for (int64_t i = 0; i < part.count; ++i) elements[i] = p[i];
  return load<Main>(elements, Whole{});
}

// ---- roundings and stores

// bfloat16 in the upper halves, undefined lower halves. A carry could turn a NaN with nearly all bits set into zero.
// Only
// float32 tensors have such NaNs: the lower bits are zero in NaNs from bfloat16 and from arithmetic.
template <typename Main>
PF_INLINE Words upper_bfloat16(Floats f) {
  const Words u = reinterpret_cast<Words>(f);
  if (!kIsSame<Main, BFloat16>) return (u + 0x7fffu + ((u >> 16) & 1)) | reinterpret_cast<Words>(f != f);
  return u + 0x7fffu + ((u >> 16) & 1);
}

// Where a kernel's outputs are stored. Streamed stores bypass the caches and avoid reading lines before writing them.
// They require memory aligned to a vector (streams_to), and are for outputs that would be evicted anyway.
struct Cached {};
struct Streamed {};

PF_INLINE bool streams_to(const void* p, int64_t row_bytes) {
#if defined(__AVX2__)
  return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(row_bytes)) % sizeof(Floats) == 0;
#else
  return false;
#endif
}
// Makes streamed stores visible to other threads.
PF_INLINE void finish_streams() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

PF_INLINE void put(void* p, Words v, Cached) { *static_cast<UnalignedWords*>(p) = v; }
PF_INLINE void put(void* p, Words v, Streamed) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(p), reinterpret_cast<__m512i>(v));
#elif defined(__AVX2__)
  _mm256_stream_si256(static_cast<__m256i*>(p), reinterpret_cast<__m256i>(v));
#else
  put(p, v, Cached{});
#endif
}

template <typename Main, typename Where>
PF_INLINE void store_own_order(float* p, Pair v, Where where) {
  put(p, reinterpret_cast<Words>(v.a), where);
  put(p + kFloats, reinterpret_cast<Words>(v.b), where);
}
template <typename Main, typename Where>
PF_INLINE void store_own_order(BFloat16* p, Pair v, Where where) {
  put(p, (upper_bfloat16<Main>(v.a) >> 16) | (upper_bfloat16<Main>(v.b) & 0xffff0000u), where);
}
template <typename Main, typename Where>
PF_INLINE void store_own_order(Float16* p, Pair v, Where where) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_castsi256_si512(_mm512_maskz_cvtps_ph(0xffff, v.a, _MM_FROUND_TO_NEAREST_INT));
  const __m256i high = _mm512_maskz_cvtps_ph(0xffff, v.b, _MM_FROUND_TO_NEAREST_INT);
  put(p, reinterpret_cast<Words>(_mm512_maskz_inserti64x4(0xff, low, high, 1)), where);
#elif defined(__AVX2__)
  put(p, reinterpret_cast<Words>(_mm256_set_m128i(_mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT),
                                                  _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT))), where);
#elif defined(PF_NEON)
  const float16x8_t halves = vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b);
  put(p, reinterpret_cast<Words>(halves), where);
#else
  float floats[kPair];
  store_own_order<Main>(floats, v, Cached{});
  for (int i = 0; i < kPair; ++i) from_float(floats[i], p + i);
#endif
}

template <typename Main>
PF_INLINE Pair round_to(Pair v, float*) { return v; }
template <typename Main>
PF_INLINE Pair round_to(Pair v, BFloat16*) {
  return {reinterpret_cast<Floats>(upper_bfloat16<Main>(v.a) & 0xffff0000u),
          reinterpret_cast<Floats>(upper_bfloat16<Main>(v.b) & 0xffff0000u)};
}
template <typename Main>
PF_INLINE Pair round_to(Pair v, Float16*) {
#if defined(__AVX512F__)
  return {_mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_cvtps_ph(0xffff, v.a, _MM_FROUND_TO_NEAREST_INT)),
          _mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_cvtps_ph(0xffff, v.b, _MM_FROUND_TO_NEAREST_INT))};
#elif defined(__AVX2__)
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT)),
          _mm256_cvtph_ps(_mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT))};
#elif defined(PF_NEON)
  return {vcvt_f32_f16(vcvt_f16_f32(v.a)), vcvt_f32_f16(vcvt_f16_f32(v.b))};
#else
  Float16 halves[kPair];
  store_own_order<Main>(halves, v, Cached{});
  return load_own_order(halves);
#endif
}
// The values of v rounded to T.
template <typename Main, typename T>
PF_INLINE Pair rounded(Pair v) {
  return round_to<Main>(v, static_cast<T*>(nullptr));
}

template <typename Main, typename T, typename Where>
PF_INLINE void store(T* p, Pair v, Whole, Where where) {
  store_own_order<Main>(p, kIsEvenOdd<Main> && !kIsEvenOdd<T> ? in_order(v) : v, where);
}
template <typename Main, typename T, typename Where>
PF_INLINE void store(T* p, Pair v, Part part, Where) {
  T elements[kPair];
  store<Main>(elements, v, Whole{}, Cached{});
  for (int64_t i = 0; i < part.count; ++i) p[i] = elements[i];
}

// v with zeros for missing elements.
template <typename Main>
PF_INLINE Pair only(Pair v, Whole) { return v; }
template <typename Main>
PF_INLINE Pair only(Pair v, Part part) {
  float elements[kPair];
  store<Main>(elements, v, Whole{}, Cached{});
  return load<Main>(elements, part);
}

// ---- loops over a row

// Calls body(i, Whole or Part) for Pairs that cover [begin, end).
template <typename Body>
PF_INLINE void for_each_pair(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kPair <= end; i += kPair) body(i, Whole{});
  if (i < end) body(i, Part{end - i});
}

// Elements buffered in the L1 cache before they are streamed to `to`. Streamed stores delay loads from the same
// offset in another page, and page-aligned tensors are often read there. Kernels with many loads therefore write
// outputs through a Piece, which is half a page off.
constexpr int64_t kPiece = 512;
template <typename T>
struct Piece {
  alignas(64) char bytes[4096 + kPiece * sizeof(T)];

  PF_MEMBER T* elements(const T* to) {
    const uintptr_t distance = reinterpret_cast<uintptr_t>(to) + 2048 - reinterpret_cast<uintptr_t>(bytes);
    return reinterpret_cast<T*>(bytes + distance % 4096 / 64 * 64);
  }
};
template <typename T>
PF_INLINE void stream_elements(const T* from, int64_t count, T* to) {
  constexpr int64_t kElements = sizeof(Words) / sizeof(T);
  int64_t i = 0;
  for (; i + kElements <= count; i += kElements)
    put(to + i, *reinterpret_cast<const UnalignedWords*>(from + i), Streamed{});
  for (; i < count; ++i) to[i] = from[i];
}

// Streams `count` elements to `to`: compute(first, n, near) writes elements [first, first + n) to near.
template <typename T, typename Compute>
static inline void stream_pieces(int64_t count, T* to, const Compute& compute) {
  Piece<T> piece;
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t n = count - first < kPiece ? count - first : kPiece;
    T* near = piece.elements(to + first);
    compute(first, n, near);
    stream_elements(near, n, to + first);
  }
  finish_streams();
}

// A sum whose error does not grow with its length: blocks of 512 elements in float lanes, the blocks' sums in double.
struct Sum {
  double lanes[kFloats] = {};
};
PF_INLINE double total(const Sum& sum) {
  double all = 0.0;
  for (int i = 0; i < kFloats; ++i) all += sum.lanes[i];
  return all;
}
constexpr int64_t kSumBlock = 512;

PF_INLINE void add_lanes(Sum& sum, Pair v) {
  const Floats block = v.a + v.b;
#pragma omp simd
  for (int lane = 0; lane < kFloats; ++lane) sum.lanes[lane] += static_cast<double>(block[lane]);
}

// Adds term(i, Whole or Part), a Pair, for the Pairs that cover block [begin, end). Terms of missing elements must be
// zeros.
template <typename Term>
PF_INLINE void add_block(Sum& sum, int64_t begin, int64_t end, const Term& term) {
  // Two Pairs at a time, because an addition has a higher latency than the loads of a term.
  Pair first{}, second{};
  int64_t i = begin;
  for (; i + 2 * kPair <= end; i += 2 * kPair) {
    first = first + term(i, Whole{});
    second = second + term(i + kPair, Whole{});
  }
  if (i + kPair <= end) {
    first = first + term(i, Whole{});
    i += kPair;
  }
  if (i < end) second = second + term(i, Part{end - i});
  add_lanes(sum, first + second);
}

// Calls body(begin, end) for blocks that cover [0, count).
template <typename Body>
PF_INLINE void for_each_block(int64_t count, const Body& body) {
  for (int64_t begin = 0; begin < count; begin += kSumBlock)
    body(begin, begin + kSumBlock < count ? begin + kSumBlock : count);
}

template <typename Term>
PF_INLINE double sum_of_pairs(int64_t count, const Term& term) {
  Sum sum;
  for_each_block(count, [&](int64_t begin, int64_t end) { add_block(sum, begin, end, term); });
  return total(sum);
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
