#include "kernels/amx/tiles.h"
#include "kernels/matmul_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The register tile: 2 x 2 tiles of the result. For every step in depth two tiles of A and two of B are loaded for four
// products, which take twice as long.
constexpr int64_t kRows = 2 * kTileRows, kColumns = 2 * kTileRows;
constexpr int64_t kStepElements = 2 * kTileElements;  // of a panel

int64_t steps_of(int64_t depth) { return (depth + kTileDepth - 1) / kTileDepth; }

// Panels of 32 lines, `panel_depth` deep: for every step in depth two tiles.
template <TileOf kOf>
void pack(const void* data, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
          int64_t panel_depth, void* panels) {
  const auto* from = static_cast<const BFloat16*>(data);
  auto* to = static_cast<BFloat16*>(panels);
  const int64_t steps = steps_of(depth), panel = steps_of(panel_depth) * kStepElements;
  for (int64_t first = 0; first < lines; first += kTileRows) {
    const int64_t count = lines - first < kTileRows ? lines - first : kTileRows;
    BFloat16* tiles = to + first / kRows * panel + first % kRows * kTileDepth;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t k = step * kTileDepth, left = depth - k < kTileDepth ? depth - k : kTileDepth;
      pack_tile<kOf>({from + first * line_stride + k * depth_stride, line_stride, depth_stride, count}, left,
                     tiles + step * kStepElements);
    }
  }
}

void pack_a(const MatmulBlock& a, void* panels) {
  pack<TileOf::kA>(a.data, a.row_stride, a.column_stride, a.rows, a.columns, a.columns, panels);
}
void pack_b(const MatmulBlock& b, int64_t panel_depth, void* panels) {
  pack<TileOf::kB>(b.data, b.column_stride, b.row_stride, b.columns, b.rows, panel_depth, panels);
}

constexpr int64_t kTileStride = kTileDepth * sizeof(BFloat16), kSumsStride = kColumns * sizeof(float);

// 32 rows of the result; tiles 0 to 3 are its sums.
void multiply_all_rows(const BFloat16* a, const BFloat16* b, int64_t steps, float* sums, bool accumulate) {
  float* lower = sums + kTileRows * kColumns;
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
    _tile_loadd(4, a, kTileStride);
    _tile_loadd(6, b, kTileStride);
    _tile_loadd(7, b + kTileElements, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileElements, kTileStride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kStepElements;
    b += kStepElements;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
  _tile_stored(2, lower, kSumsStride);
  _tile_stored(3, lower + kTileRows, kSumsStride);
}

// The last rows, if they are no more than 16.
void multiply_upper_rows(const BFloat16* a, const BFloat16* b, int64_t steps, float* sums, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kTileRows, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, a, kTileStride);
    _tile_loadd(6, b, kTileStride);
    _tile_loadd(7, b + kTileElements, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    a += kStepElements;
    b += kStepElements;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileRows, kSumsStride);
}

// Steps whose tiles of B, 32 KiB, stay in the first cache while the panels of A pass by.
constexpr int64_t kStepsTogether = 16;

void multiply(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums, bool accumulate) {
  const auto *a = static_cast<const BFloat16*>(a_panels), *b = static_cast<const BFloat16*>(b_panel);
  const int64_t steps = steps_of(depth);
  for (int64_t first = 0; first < steps; first += kStepsTogether) {
    const int64_t count = steps - first < kStepsTogether ? steps - first : kStepsTogether;
    for (int64_t m = 0; m < rows; m += kRows) {
      const auto multiply_rows = rows - m > kTileRows ? multiply_all_rows : multiply_upper_rows;
      multiply_rows(a + m * steps * kTileDepth + first * kStepElements, b + first * kStepElements, count,
                    sums + m * kColumns, accumulate || first > 0);
    }
  }
}

template <typename T>
void store(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride, bool accumulate) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = sums + m * kColumns;
    T* to = static_cast<T*>(out) + m * out_row_stride;
    if (accumulate) {
#pragma omp simd
      for (int64_t n = 0; n < columns; ++n) from_float(to_float(to[n]) + from[n], to + n);
    } else if (columns == kColumns) {
#pragma omp simd
      for (int64_t n = 0; n < kColumns; ++n) from_float(from[n], to + n);
    } else {
      for (int64_t n = 0; n < columns; ++n) from_float(from[n], to + n);
    }
  }
}

constexpr MatmulTable kTable = {
    kRows,
    kColumns,
    sizeof(BFloat16),
    kTileDepth,
    // 512 KiB of a core's 2 MiB.
    8,
    0,
    configure_tiles,
    release_tiles,
    {nullptr, pack_a, nullptr},
    {nullptr, pack_b, nullptr},
    multiply,
    {store<float>, store<BFloat16>, store<Float16>},
};

}  // namespace

const MatmulTable& bfloat16_matmul_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
