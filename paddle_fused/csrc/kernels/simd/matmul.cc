#include "kernels/matmul_table.h"
#include "kernels/simd/load_store.h"
#include "kernels/simd/tile_matmul.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

constexpr int64_t kPanel = kMaxVectors * kLanes;
static_assert(kMatmulColumns % kPanel == 0 && kMatmulRows % kTileRows == 0);

template <typename T>
void widen(const T* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

// to[r * to_stride + c] = from[r * row_stride + c * column_stride]
template <typename T>
void widen_rows(const T* from, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, float* to,
                int64_t to_stride) {
  if (column_stride == 1) {
    for (int64_t r = 0; r < rows; ++r) widen(from + r * row_stride, columns, to + r * to_stride);
    return;
  }
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) to[r * to_stride + c] = to_float(from[r * row_stride + c * column_stride]);
}

template <typename T>
void pack_panel(const MatmulBlock& b, float* panel) {
  widen_rows(static_cast<const T*>(b.data), b.row_stride, b.column_stride, b.rows, b.columns, panel, kPanel);
  // Full vectors are computed; what stands in the columns beyond the last one must only be numbers.
  const int64_t padded = (b.columns + kLanes - 1) / kLanes * kLanes;
  if (b.columns == padded) return;
  for (int64_t k = 0; k < b.rows; ++k)
    for (int64_t n = b.columns; n < padded; ++n) panel[k * kPanel + n] = 0;
}

template <typename T>
void multiply(const MatmulBlock& a, const float* panels, int64_t columns, float* tile, bool accumulate) {
  alignas(64) float packed[kMatmulRows * kMatmulDepth];
  const T* from = static_cast<const T*>(a.data);
  const int64_t rows = (a.rows + kTileRows - 1) / kTileRows * kTileRows;
  // A keeps its order in memory: the product reads one element at a time of each of kTileRows rows.
  MatrixA matrix{packed, kMatmulDepth, 1};
  if (a.column_stride == 1) {
    widen_rows(from, a.row_stride, 1, a.rows, a.columns, packed, kMatmulDepth);
  } else {
    matrix = {packed, 1, kMatmulRows};
    widen_rows(from, a.column_stride, a.row_stride, a.columns, a.rows, packed, kMatmulRows);
  }
  for (int64_t m = a.rows; m < rows; ++m)
    for (int64_t k = 0; k < a.columns; ++k) packed[m * matrix.row_stride + k * matrix.depth_stride] = 0;
  for (int64_t n = 0; n < columns; n += kPanel) {
    const int64_t left = (columns - n + kLanes - 1) / kLanes * kLanes;
    tile_matmul(rows, left < kPanel ? left : kPanel, a.columns, matrix, panels + n * kMatmulDepth, kPanel, tile + n,
                kMatmulColumns, accumulate);
  }
}

template <typename T>
void store_tile(const float* tile, int64_t rows, int64_t columns, void* out, int64_t out_row_stride,
                bool accumulate) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = tile + m * kMatmulColumns;
    T* to = static_cast<T*>(out) + m * out_row_stride;
    if (accumulate) {
#pragma omp simd
      for (int64_t n = 0; n < columns; ++n) from_float(to_float(to[n]) + from[n], to + n);
    } else {
#pragma omp simd
      for (int64_t n = 0; n < columns; ++n) from_float(from[n], to + n);
    }
  }
}

constexpr MatmulTable kTable = {
    kPanel,
    {pack_panel<float>, pack_panel<BFloat16>, pack_panel<Float16>},
    {multiply<float>, multiply<BFloat16>, multiply<Float16>},
    {store_tile<float>, store_tile<BFloat16>, store_tile<Float16>},
};

}  // namespace

const MatmulTable& matmul_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
