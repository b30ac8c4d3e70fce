#include "kernels/amx/tile_product.h"
#include "kernels/matmul_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// Panels of 32 lines, `panel_depth` deep: for every step in depth two tiles.
template <TileOf kOf>
void pack(const void* data, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
          int64_t panel_depth, void* panels) {
  const auto* from = static_cast<const BFloat16*>(data);
  auto* to = static_cast<BFloat16*>(panels);
  const int64_t steps = steps_of(depth), panel = steps_of(panel_depth) * kStepElements;
  for (int64_t first = 0; first < lines; first += kTileRows) {
    const int64_t count = lines - first < kTileRows ? lines - first : kTileRows;
    BFloat16* tiles = to + first / kProductRows * panel + first % kProductRows * kTileDepth;
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

// Steps whose tiles of B, 32 KiB, stay in the first cache while the panels of A pass by.
constexpr int64_t kStepsTogether = 16;

void multiply(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums, bool accumulate) {
  const auto *a = static_cast<const BFloat16*>(a_panels), *b = static_cast<const BFloat16*>(b_panel);
  const int64_t steps = steps_of(depth);
  for (int64_t first = 0; first < steps; first += kStepsTogether) {
    const int64_t count = steps - first < kStepsTogether ? steps - first : kStepsTogether;
    for (int64_t m = 0; m < rows; m += kProductRows)
      multiply_tiles(rows - m, {a + m * steps * kTileDepth + first * kStepElements}, {b + first * kStepElements}, count,
                     sums + m * kProductColumns, accumulate || first > 0);
  }
}

template <typename T>
void store(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride, bool accumulate) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = sums + m * kProductColumns;
    T* to = static_cast<T*>(out) + m * out_row_stride;
    if (accumulate) {
#pragma omp simd
      for (int64_t n = 0; n < columns; ++n) from_float(to_float(to[n]) + from[n], to + n);
    } else if (columns == kProductColumns) {
#pragma omp simd
      for (int64_t n = 0; n < kProductColumns; ++n) from_float(from[n], to + n);
    } else {
      for (int64_t n = 0; n < columns; ++n) from_float(from[n], to + n);
    }
  }
}

constexpr MatmulTable kTable = {
    kProductRows,
    kProductColumns,
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

const MatmulTable& matmul_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
