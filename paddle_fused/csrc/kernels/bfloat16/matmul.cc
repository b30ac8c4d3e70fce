#include "kernels/bfloat16/tile_product.h"
#include "kernels/matmul/matmul_table.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

constexpr int64_t kColumns = kWidestTiles * kTileRows;

// Tiles of a panel per step in depth.
template <TileOf kOf>
constexpr int64_t kPanelTiles = kOf == TileOf::kA ? 2 : kWidestTiles;

// Packs contiguous lines as pairs of adjacent elements in depth. A panel's step is written sequentially. Meanwhile,
// the rows for the panel after the next are prefetched.
void pack_rows(const BFloat16* from, int64_t stride, int64_t lines, int64_t depth, int64_t panel, BFloat16* to) {
  for (int64_t begin = 0; begin < depth; begin += kTileDepth, to += kWidestTiles * kTileElements) {
    BFloat16* tiles = to;
    for (int64_t first = 0; first < lines; first += kColumns, tiles += panel) {
      for (int64_t p = 0; p < kTileDepth / 2; ++p) {
        const int64_t k = begin + 2 * p;
        const BFloat16* even = from + k * stride + first;
        __builtin_prefetch(even + 2 * kColumns);
        __builtin_prefetch(even + stride + 2 * kColumns);
        for (int64_t tile = 0; tile < kWidestTiles; ++tile) {
          const int64_t line = first + tile * kTileRows;
          const auto there = static_cast<__mmask16>(line < lines ? first_of_32(lines - line) : 0);
          const auto row = [&](int64_t number, const BFloat16* elements) {
            const __m256i loaded =
                number < depth ? _mm256_maskz_loadu_epi16(there, elements + tile * kTileRows) : __m256i{};
            return _mm512_cvtepu16_epi32(loaded);
          };
          const __m512i pairs = _mm512_or_si512(row(k, even), _mm512_slli_epi32(row(k + 1, even + stride), 16));
          _mm512_store_si512(tiles + tile * kTileElements + p * kTileDepth, pairs);
        }
      }
    }
  }
}

// Packs panels of kPanelTiles tiles of lines, `panel_depth` deep.
template <TileOf kOf>
void pack(const void* data, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
          int64_t panel_depth, void* panels) {
  constexpr int64_t kStep = kPanelTiles<kOf> * kTileElements, kLines = kPanelTiles<kOf> * kTileRows;
  const auto* from = static_cast<const BFloat16*>(data);
  auto* to = static_cast<BFloat16*>(panels);
  const int64_t steps = steps_of(depth), panel = steps_of(panel_depth) * kStep;
  if (kOf == TileOf::kB && line_stride == 1 && depth_stride != 1)
    return pack_rows(from, depth_stride, lines, depth, panel, to);
  for (int64_t begin = 0; begin < lines; begin += kLines, to += panel) {
    const int64_t end = lines - begin < kLines ? lines : begin + kLines;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t k = step * kTileDepth, left = depth - k < kTileDepth ? depth - k : kTileDepth;
      for (int64_t first = begin; first < end; first += kTileRows) {
        const int64_t count = end - first < kTileRows ? end - first : kTileRows;
        pack_tile<kOf>({from + first * line_stride + k * depth_stride, line_stride, depth_stride, count}, left,
                       to + step * kStep + (first - begin) * kTileDepth);
      }
    }
  }
}

void pack_a(const MatmulBlock& a, void* panels) {
  pack<TileOf::kA>(a.data, a.row_stride, a.column_stride, a.rows, a.columns, a.columns, panels);
}
void pack_b(const MatmulBlock& b, int64_t panel_depth, void* panels) {
  pack<TileOf::kB>(b.data, b.column_stride, b.row_stride, b.columns, b.rows, panel_depth, panels);
}

void multiply(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums, bool accumulate) {
  const auto *a = static_cast<const BFloat16*>(a_panels), *b = static_cast<const BFloat16*>(b_panel);
  constexpr int64_t kStep = kPanelTiles<TileOf::kB> * kTileElements;
  const int64_t steps = steps_of(depth);
  for (int64_t first = 0; first < steps; first += kStepsTogether) {
    const int64_t count = steps - first < kStepsTogether ? steps - first : kStepsTogether;
    for (int64_t m = 0; m < rows; m += kProductRows)
      multiply_tiles<kWidestTiles, TileOf::kA>(rows - m, {a + m * steps * kTileDepth + first * kStepElements},
                                               {b + first * kStep, kStep}, count, sums + m * kColumns,
                                               accumulate || first > 0);
  }
}

template <typename T>
void store(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride, bool accumulate) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = sums + m * kColumns;
    T* to = static_cast<T*>(out) + m * out_row_stride;
    int64_t n = 0;
    for (; n + kLanes <= columns; n += kLanes) {
      const Vector sum = load(from + n);
      store_rounded(to + n, accumulate ? load_elements(to + n) + sum : sum);
    }
    for (; n < columns; ++n) from_float(accumulate ? to_float(to[n]) + from[n] : from[n], to + n);
  }
}

constexpr MatmulTable kTable = {
    kProductRows,
    kColumns,
    sizeof(BFloat16),
    kTileDepth,
    kPackedDepth,
    kBlockPanels,
    0,
    enter_products,
    leave_products,
    {nullptr, pack_a, nullptr},
    {nullptr, pack_b, nullptr},
    multiply,
    {store<float>, store<BFloat16>, store<Float16>},
};

}  // namespace

const MatmulTable& matmul_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
