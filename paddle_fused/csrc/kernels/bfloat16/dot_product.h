// Products of tiles with AVX512_BF16. One instruction adds to 16 sums the products of a pair of A, which is the same
// for all sums, with 16 pairs of B. Eight rows of sums, up to three vectors wide, stay in registers: 24 such
// instructions need 11 vector loads.
#pragma once
#include "kernels/bfloat16/tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

static inline void enter_products() {}
static inline void leave_products() {}

constexpr int kWidestTiles = 3;        // adjacent tiles of B
constexpr int64_t kStepsTogether = 8;  // steps whose tiles of B (24 KiB) stay in the L1 cache
constexpr int64_t kPackedDepth = 2048, kBlockPanels = 4;  // of A: 512 KiB of a core's 1 MiB
constexpr TileOf kColumnsPacked = TileOf::kB;  // how columns of scores become rows of A: pairs are read one by one

constexpr int kDotRows = 8;

// The first kRows rows of A. Pair p of a row is at a.tiles + row * kRowStride + p * kPairStride.
template <int kRows, int kColumnTiles, int64_t kRowStride, int64_t kPairStride>
__attribute__((noinline)) static void multiply_rows(TileSteps a, TileSteps b, int64_t steps, float* sums,
                                                    bool accumulate) {
  typedef int32_t Pair __attribute__((may_alias, aligned(2)));
  constexpr int64_t kColumns = kColumnTiles * kTileRows;
  __m512 sum[kRows][kColumnTiles];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kColumnTiles; ++v)
      sum[r][v] = accumulate ? _mm512_loadu_ps(sums + r * kColumns + v * kTileRows) : __m512{};
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 4
    for (int p = 0; p < kTileDepth / 2; ++p) {
      __m512bh columns[kColumnTiles];
      for (int v = 0; v < kColumnTiles; ++v)
        columns[v] = (__m512bh)_mm512_load_si512(b.tiles + v * kTileElements + p * kTileDepth);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        __m512i pair = _mm512_set1_epi32(*reinterpret_cast<const Pair*>(a.tiles + r * kRowStride + p * kPairStride));
        asm("" : "+v"(pair));  // loaded once, not by each instruction that uses it
        for (int v = 0; v < kColumnTiles; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)pair, columns[v]);
      }
    }
    a.tiles += a.stride;
    b.tiles += b.stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kColumnTiles; ++v) _mm512_storeu_ps(sums + r * kColumns + v * kTileRows, sum[r][v]);
}

template <int kColumnTiles, TileOf kPacked>
static inline void multiply_tiles(int64_t rows, TileSteps a, TileSteps b, int64_t steps, float* sums,
                                  bool accumulate) {
  constexpr int64_t kRowStride = kPacked == TileOf::kA ? kTileDepth : 2, kPairStride = kTileDepth + 2 - kRowStride;
  const BFloat16* tiles = a.tiles;
  for (int64_t row = 0; row < 2 * kTileRows && row < rows; row += kDotRows) {
    a.tiles = tiles + row / kTileRows * kTileElements + row % kTileRows * kRowStride;
    float* to = sums + row * kColumnTiles * kTileRows;
    if (rows - row == 1)
      multiply_rows<1, kColumnTiles, kRowStride, kPairStride>(a, b, steps, to, accumulate);
    else if (rows - row == 2)
      multiply_rows<2, kColumnTiles, kRowStride, kPairStride>(a, b, steps, to, accumulate);
    else if (rows - row <= 4)
      multiply_rows<4, kColumnTiles, kRowStride, kPairStride>(a, b, steps, to, accumulate);
    else
      multiply_rows<kDotRows, kColumnTiles, kRowStride, kPairStride>(a, b, steps, to, accumulate);
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
