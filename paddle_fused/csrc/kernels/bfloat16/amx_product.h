// Products of tiles in the eight tile registers of AMX. Each step of 32 in depth loads two tiles of A (upper and
// lower) and two tiles of B (left and right) for four products, which take twice as long as the loads.
#pragma once
#include "kernels/bfloat16/tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// All eight tiles have full size. The format is defined by the processor.
struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
alignas(64) constexpr TileConfiguration kFullTiles = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// A thread holds the tile configuration only while it multiplies, because the operating system saves the tiles of
// every thread with a configuration.
static inline void enter_products() { _tile_loadconfig(&kFullTiles); }
static inline void leave_products() { _tile_release(); }

constexpr int kWidestTiles = 2;         // adjacent tiles of B
constexpr int64_t kStepsTogether = 16;  // steps whose tiles of B (32 KiB) stay in the L1 cache
constexpr int64_t kPackedDepth = 1024, kBlockPanels = 8;  // of A: 512 KiB of a core's 2 MiB
constexpr TileOf kColumnsPacked = TileOf::kA;  // how columns of scores become rows of A

constexpr int64_t kTileStride = kTileDepth * sizeof(BFloat16), kSumsStride = 2 * kTileRows * sizeof(float);

// Tiles 0 to 3 are the sums. Tiles 2 and 3 (lower rows) are used only with kLower.
template <bool kLower>
static inline void multiply_rows(TileSteps a, TileSteps b, int64_t steps, float* sums, bool accumulate) {
  float* lower = sums + kTileRows * 2 * kTileRows;
  if (accumulate) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kTileRows, kSumsStride);
    if (kLower) {
      _tile_loadd(2, lower, kSumsStride);
      _tile_loadd(3, lower + kTileRows, kSumsStride);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, a.tiles, kTileStride);
    _tile_loadd(6, b.tiles, kTileStride);
    _tile_loadd(7, b.tiles + kTileElements, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kLower) {
      _tile_loadd(5, a.tiles + kTileElements, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    a.tiles += a.stride;
    b.tiles += b.stride;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
  if (kLower) {
    _tile_stored(2, lower, kSumsStride);
    _tile_stored(3, lower + kTileRows, kSumsStride);
  }
}

template <int kColumnTiles, TileOf kPacked>
static inline void multiply_tiles(int64_t rows, TileSteps a, TileSteps b, int64_t steps, float* sums,
                                  bool accumulate) {
  static_assert(kColumnTiles == 2 && kPacked == TileOf::kA, "the only form that the tile registers support");
  // The compiler cannot see the memory that tile loads read; this forces all pending stores.
  asm volatile("" ::: "memory");
  if (rows > kTileRows)
    multiply_rows<true>(a, b, steps, sums, accumulate);
  else
    multiply_rows<false>(a, b, steps, sums, accumulate);
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
