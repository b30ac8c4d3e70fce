// C (+)= A B for small fp32 tiles, for */simd only: 4 rows by up to kMaxVectors vectors of C stay in registers.
#pragma once
#include <cstdint>

#include "kernels/simd/math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kMaxVectors = 4;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kMaxVectors = 3;
#elif defined(PF_NEON)
constexpr int kLanes = 4, kMaxVectors = 4;
#else
constexpr int kLanes = 4, kMaxVectors = 2;
#endif
constexpr int kRowsTogether = 4;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVector __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedVector __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

static inline Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
static inline void store(float* p, Vector v) { *reinterpret_cast<UnalignedVector*>(p) = v; }
// Subtracting zero, unlike adding it, preserves every value, so the compiler can remove it.
static inline Vector broadcast(float f) { return f - Vector{}; }

// A(m, k) = a[m * row_stride + k * depth_stride], for A or its transpose.
struct MatrixA {
  const float* data;
  int64_t row_stride, depth_stride;
};

template <int kVectors>
static inline void multiply_rows(const MatrixA& a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                                 int64_t depth, bool accumulate) {
  Vector sum[kRowsTogether][kVectors];
  for (int r = 0; r < kRowsTogether; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Vector{};
  const float* a_column = a.data;
  for (int64_t k = 0; k < depth; ++k) {
    Vector b_row[kVectors];
    for (int v = 0; v < kVectors; ++v) b_row[v] = load(b + v * kLanes);
    for (int r = 0; r < kRowsTogether; ++r) {
      const Vector factor = broadcast(a_column[r * a.row_stride]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] += factor * b_row[v];
    }
    a_column += a.depth_stride;
    b += b_stride;
  }
  // C is added last, so rounding errors grow with the block length plus the number of blocks, not with their product.
  for (int r = 0; r < kRowsTogether; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
  }
}

// rows is rounded up to a multiple of kRowsTogether (A and C must have these rows); columns is a multiple of kLanes.
static inline void tile_matmul(int64_t rows, int64_t columns, int64_t depth, const MatrixA& a, const float* b,
                               int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  for (int64_t n = 0; n < columns;) {
    const int64_t left = (columns - n) / kLanes;
    const int vectors = left < kMaxVectors ? static_cast<int>(left) : kMaxVectors;
    for (int64_t m = 0; m < rows; m += kRowsTogether) {
      const MatrixA a_rows{a.data + m * a.row_stride, a.row_stride, a.depth_stride};
      float* c_rows = c + m * c_stride + n;
      switch (vectors) {
        case 1: multiply_rows<1>(a_rows, b + n, b_stride, c_rows, c_stride, depth, accumulate); break;
        case 2: multiply_rows<2>(a_rows, b + n, b_stride, c_rows, c_stride, depth, accumulate); break;
#if defined(__AVX2__) || defined(PF_NEON)
        case 3: multiply_rows<3>(a_rows, b + n, b_stride, c_rows, c_stride, depth, accumulate); break;
#endif
#if defined(__AVX512F__) || defined(PF_NEON)
        case 4: multiply_rows<4>(a_rows, b + n, b_stride, c_rows, c_stride, depth, accumulate); break;
#endif
      }
    }
    n += vectors * kLanes;
  }
}

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
