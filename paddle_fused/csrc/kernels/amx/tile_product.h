// The product of two by two tiles, for amx/*.cc and what is compiled for AMX only:
//   C (+)= A B      32 x 32 sums in fp32, row by row
// For every step of 32 in depth two tiles of A, the upper and the lower, and two of B, the left and the right, are loaded
// for four products, which take twice as long.
#pragma once
#include "kernels/amx/tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

constexpr int64_t kProductRows = 2 * kTileRows, kProductColumns = 2 * kTileRows;
constexpr int64_t kStepElements = 2 * kTileElements;

static inline int64_t steps_of(int64_t depth) { return (depth + kTileDepth - 1) / kTileDepth; }

// For each step two tiles, one after the other; steps are `stride` elements apart.
struct TileSteps {
  const BFloat16* tiles;
  int64_t stride = kStepElements;
};

constexpr int64_t kTileStride = kTileDepth * sizeof(BFloat16), kSumsStride = kProductColumns * sizeof(float);

// Tiles 0 to 3 are the sums.
static inline void multiply_all_rows(TileSteps a, TileSteps b, int64_t steps, float* sums, bool accumulate) {
  float* lower = sums + kTileRows * kProductColumns;
  if (accumulate) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kTileRows, kSumsStride);
    _tile_loadd(2, lower, kSumsStride);
    _tile_loadd(3, lower + kTileRows, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, a.tiles, kTileStride);
    _tile_loadd(6, b.tiles, kTileStride);
    _tile_loadd(7, b.tiles + kTileElements, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a.tiles + kTileElements, kTileStride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a.tiles += a.stride;
    b.tiles += b.stride;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
  _tile_stored(2, lower, kSumsStride);
  _tile_stored(3, lower + kTileRows, kSumsStride);
}

static inline void multiply_upper_rows(TileSteps a, TileSteps b, int64_t steps, float* sums, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kTileRows, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, a.tiles, kTileStride);
    _tile_loadd(6, b.tiles, kTileStride);
    _tile_loadd(7, b.tiles + kTileElements, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    a.tiles += a.stride;
    b.tiles += b.stride;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
}

// The first `rows` rows of the sums are wanted; the others need not be computed.
static inline void multiply_tiles(int64_t rows, TileSteps a, TileSteps b, int64_t steps, float* sums,
                                  bool accumulate) {
  // The compiler is not told what the loads of tiles read; this has it write all before.
  asm volatile("" ::: "memory");
  if (rows > kTileRows)
    multiply_all_rows(a, b, steps, sums, accumulate);
  else
    multiply_upper_rows(a, b, steps, sums, accumulate);
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
