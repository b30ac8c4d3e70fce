// Operands of bfloat16 products, for bfloat16/*.cc and code compiled for bfloat16 products only. A tile is 16 rows of
// 64 bytes, the format of AMX tile registers. A product of tiles is
//   C[m, n] += sum over k < 32 of A[m, k] B[k, n]      16 x 16 results in fp32, A and B in bfloat16.
// A tile of A has 16 rows of 32 elements. A tile of B has 16 rows of pairs: B[2 p, n], B[2 p + 1, n] for 16 columns
// n. Products are exact, sums are rounded to nearest even; subnormal elements and results count as zeros.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/simd/element_vectors.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

constexpr int kTileRows = 16, kTileDepth = 32, kTileElements = kTileRows * kTileDepth;

// At most 16 `lines`, rows of A or columns of B. Element k of line i is at data[i * line_stride + k * depth_stride].
struct Lines {
  const BFloat16* data;
  int64_t line_stride, depth_stride;
  int64_t lines;
};

enum class TileOf { kA, kB };

// The tiles of consecutive steps in depth, `stride` elements apart. The tiles of a step are consecutive.
struct TileSteps {
  const BFloat16* tiles;
  int64_t stride = 2 * kTileElements;
};

static inline __mmask32 first_of_32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

// Floats are rounded to nearest even; subnormal floats may become zeros, as they count as zeros in products anyway.

// Pairs from two rows: even[n], odd[n] for 16 columns n.
static inline __m512i rounded_pairs(Vector even, Vector odd) {
#if defined(__AVX512BF16__)
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even));
  const __m512i alternate = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                             21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(alternate, halves);
#else
  return reinterpret_cast<__m512i>(bfloat16_bits(even) | bfloat16_bits(odd) << 16);
#endif
}

template <typename T>
static inline void store_rounded(T* to, Vector v) {
  store_elements(to, v);
}
template <>
inline void store_rounded(BFloat16* to, Vector v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
#else
  store_elements(to, v);
#endif
}

// rows[i][j] becomes rows[j][i].
static inline void transpose(__m512i rows[16]) {
  __m512i half[16];
  for (int i = 0; i < 16; i += 2) {
    half[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    half[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // In every 128 bits: column 4 q + c of four rows, where q is the index of the 128 bits.
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512i e = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
    half[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    half[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    half[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    half[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = half[i];
}

// Elements of a line to prefetch: more lines are read at a time than the hardware prefetcher tracks.
constexpr int64_t kFetchedAhead = 8 * kTileDepth;

// Packs the elements [0, depth) of each line, at most 32, into a tile and fills the rest with zeros. Both kinds of
// tiles
// are a matrix of pairs of adjacent elements in depth: [line][pair] for A, [pair][line] for B.
template <TileOf kOf>
static inline void pack_tile(const Lines& from, int64_t depth, BFloat16* tile) {
  __m512i rows[16];
  bool by_lines = true;
  if (from.depth_stride == 1) {
    const __mmask32 mask = first_of_32(depth);
    for (int i = 0; i < 16; ++i) __builtin_prefetch(from.data + i * from.line_stride + kFetchedAhead);
    for (int i = 0; i < 16; ++i)
      rows[i] = i < from.lines ? _mm512_maskz_loadu_epi16(mask, from.data + i * from.line_stride) : __m512i{};
  } else if (from.line_stride == 1) {
    by_lines = false;
    const auto mask = static_cast<__mmask16>(first_of_32(from.lines));
    const auto row = [&](int64_t k) {
      const __m256i loaded =
          k < depth ? _mm256_maskz_loadu_epi16(mask, from.data + k * from.depth_stride) : __m256i{};
      return _mm512_cvtepu16_epi32(loaded);
    };
    for (int p = 0; p < 16; ++p) rows[p] = _mm512_or_si512(row(2 * p), _mm512_slli_epi32(row(2 * p + 1), 16));
  } else {
    alignas(64) BFloat16 gathered[kTileElements] = {};
    for (int64_t i = 0; i < from.lines; ++i)
      for (int64_t k = 0; k < depth; ++k)
        gathered[i * kTileDepth + k] = from.data[i * from.line_stride + k * from.depth_stride];
    for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(gathered + i * kTileDepth);
  }
  if (by_lines != (kOf == TileOf::kA)) transpose(rows);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kTileDepth, rows[i]);
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
