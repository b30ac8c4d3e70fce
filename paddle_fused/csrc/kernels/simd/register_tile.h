// The product of two packed panels, for */simd only: a tile of the result as large as the registers allow.
#pragma once
#include "kernels/simd/tile_matmul.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

// The sums use three quarters of the vector registers (16, or 32 with AVX-512 and NEON). The others hold a row of B
// and one element of A. There are enough sums to hide the latency of the multiply-adds.
#if defined(__AVX512F__) || defined(PF_NEON)
constexpr int kRegisterRows = 12, kRegisterVectors = 2;
#elif defined(__AVX2__)
constexpr int kRegisterRows = 6, kRegisterVectors = 2;
#else
constexpr int kRegisterRows = 4, kRegisterVectors = 2;
#endif
constexpr int kRegisterColumns = kRegisterVectors * kLanes;
constexpr int kRegisterTile = kRegisterRows * kRegisterColumns;

// sums(m, n) (+)= sum over k of a[k][m] b[k][n], for the first kRows rows of a panel of A.
template <int kRows>
static inline void multiply_rows_of_panel(const float* __restrict a, const float* __restrict b, int64_t depth,
                                          float* __restrict sums, bool accumulate) {
  Vector sum[kRows][kRegisterVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kRegisterVectors; ++v) sum[r][v] = Vector{};
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[kRegisterVectors];
    for (int v = 0; v < kRegisterVectors; ++v) row[v] = load(b + v * kLanes);
#if defined(PF_NEON)
    // The multiply-add instruction uses one lane of a register.
    Vector column[(kRows + kLanes - 1) / kLanes];
    for (int r = 0; r < kRows; r += kLanes) column[r / kLanes] = load(a + r);
#endif
    for (int r = 0; r < kRows; ++r) {
#if defined(PF_NEON)
      const Vector factor = broadcast(column[r / kLanes][r % kLanes]);
#else
      const Vector factor = broadcast(a[r]);
#endif
      for (int v = 0; v < kRegisterVectors; ++v) sum[r][v] += factor * row[v];
    }
    a += kRegisterRows;
    b += kRegisterColumns;
  }
  // The sum in memory is added last, so rounding errors grow with the block length plus the number of blocks, not
  // with their product.
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kRegisterVectors; ++v) {
      float* to = sums + r * kRegisterColumns + v * kLanes;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
  }
}

// The same for at least the first `rows` rows.
static inline void multiply_panels(const float* a, int64_t rows, const float* b, int64_t depth, float* sums,
                                   bool accumulate) {
  if (rows == 1)
    multiply_rows_of_panel<1>(a, b, depth, sums, accumulate);
  else if (rows == 2)
    multiply_rows_of_panel<2>(a, b, depth, sums, accumulate);
  else if (rows <= 4)
    multiply_rows_of_panel<4>(a, b, depth, sums, accumulate);
  else
    multiply_rows_of_panel<kRegisterRows>(a, b, depth, sums, accumulate);
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
