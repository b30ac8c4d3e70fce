#include "kernels/matmul/matmul_table.h"
#include "kernels/shuffle.h"
#include "kernels/simd/load_store.h"
#include "kernels/simd/register_tile.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
void widen(const T* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

#if defined(__F16C__)
// The processor's conversion, which reads subnormal halves correctly in any mode.
void widen(const Float16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}
#endif

typedef float Quad __attribute__((vector_size(16)));
typedef float UnalignedQuad __attribute__((vector_size(16), aligned(4), may_alias));

static inline Quad load_quad(const float* p) { return *reinterpret_cast<const UnalignedQuad*>(p); }

#if defined(__AVX2__)
static inline __m256 load_two_quads(const float* from, int64_t line_stride) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(load_quad(from)), load_quad(from + 4 * line_stride), 1);
}
#endif

// Four floats of each of the lines 0, 4, 8, ... of a vector's lanes.
static inline Vector load_quads(const float* from, int64_t line_stride) {
#if defined(__AVX512F__)
  return _mm512_insertf32x8(_mm512_castps256_ps512(load_two_quads(from, line_stride)),
                            load_two_quads(from + 8 * line_stride, line_stride), 1);
#elif defined(__AVX2__)
  return load_two_quads(from, line_stride);
#else
  return load_quad(from);
#endif
}

// The source lane of a lane of interleave(a, b), with b's lanes numbered after a's. Parts of `unit` floats alternate.
template <int unit, bool upper>
constexpr int interleaved(int lane) {
  const int within = lane % 4, part = within / unit;
  return lane / 4 * 4 + (upper ? 2 : 0) + part / 2 * unit + within % unit + (part % 2 ? kLanes : 0);
}

// Interleaves the lower (or upper) halves of a and b within every 128 bits, in units of `unit` floats.
template <int unit, bool upper>
static inline Vector interleave(Vector a, Vector b) {
  constexpr auto from = interleaved<unit, upper>;
  return PF_SHUFFLE(a, b, from(0), from(1), from(2), from(3)
#if defined(__AVX2__)
                                           ,
                                 from(4), from(5), from(6), from(7)
#endif
#if defined(__AVX512F__)
                                              ,
                                 from(8), from(9), from(10), from(11), from(12), from(13), from(14), from(15)
#endif
  );
}

// to[k * width + line] = from[line * stride + k] for kLanes lines and `depth` values of k. Lines are `stride` apart.
// Lines beyond the last one may be written temporarily.
static inline void transpose_lines(const float* from, int64_t stride, int64_t depth, float* to, int64_t width) {
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    const Vector l0 = load_quads(from + k, stride), l1 = load_quads(from + stride + k, stride);
    const Vector l2 = load_quads(from + 2 * stride + k, stride), l3 = load_quads(from + 3 * stride + k, stride);
    const Vector a = interleave<1, false>(l0, l1), b = interleave<1, true>(l0, l1);
    const Vector c = interleave<1, false>(l2, l3), d = interleave<1, true>(l2, l3);
    store(to + k * width, interleave<2, false>(a, c));
    store(to + (k + 1) * width, interleave<2, true>(a, c));
    store(to + (k + 2) * width, interleave<2, false>(b, d));
    store(to + (k + 3) * width, interleave<2, true>(b, d));
  }
  for (; k < depth; ++k)
    for (int line = 0; line < kLanes; ++line) to[k * width + line] = from[line * stride + k];
}

// panel[k * kWidth + line] = from[line * stride + k] for `lines` up to kWidth.
template <int kWidth, typename T>
void pack_lines(const T* from, int64_t stride, int64_t lines, int64_t depth, float* panel) {
  constexpr int kPadded = (kWidth + kLanes - 1) / kLanes * kLanes, kPiece = 64;
  // Widened parts of the lines. Missing lines have undefined values.
  alignas(64) float piece[kPadded * kPiece];
  for (int64_t i = lines * kPiece; i < kPadded * kPiece; ++i) piece[i] = 0;
  for (int64_t k = 0; k < depth; k += kPiece) {
    const int64_t count = depth - k < kPiece ? depth - k : kPiece;
    for (int64_t line = 0; line < lines; ++line) widen(from + line * stride + k, count, piece + line * kPiece);
    for (int v = 0; v < kPadded; v += kLanes)
      transpose_lines(piece + v * kPiece, kPiece, count, panel + k * kWidth + v, kWidth);
  }
}

// panel[k * kWidth + i] = from[k * stride + i], 0 beyond the last i; panels are `panel_depth` deep. Several rows are
// read at a time, each from its first panel to its last, in the order in which the hardware prefetches.
template <int kWidth, typename T>
void pack_rows(const T* from, int64_t stride, int64_t count, int64_t depth, int64_t panel_depth, float* panels) {
  constexpr int64_t kTogether = 8;
  for (int64_t begin = 0; begin < depth; begin += kTogether) {
    const int64_t end = depth - begin < kTogether ? depth : begin + kTogether;
    for (int64_t i = 0; i < count; i += kWidth) {
      float* panel = panels + i * panel_depth;
      if (count - i >= kWidth) {
        for (int64_t k = begin; k < end; ++k) widen(from + k * stride + i, kWidth, panel + k * kWidth);
        continue;
      }
      for (int64_t k = begin; k < end; ++k)
        for (int64_t c = 0; c < kWidth; ++c)
          panel[k * kWidth + c] = i + c < count ? to_float(from[k * stride + i + c]) : 0.0f;
    }
  }
}

// Packs panels of kWidth lines each.
template <int kWidth, typename T>
void pack(const void* data, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
          int64_t panel_depth, void* to) {
  const T* from = static_cast<const T*>(data);
  float* panels = static_cast<float*>(to);
  if (line_stride == 1 && depth_stride != 1)
    return pack_rows<kWidth>(from, depth_stride, lines, depth, panel_depth, panels);
  for (int64_t line = 0; line < lines; line += kWidth) {
    const T* first = from + line * line_stride;
    float* panel = panels + line * panel_depth;
    const int64_t count = lines - line < kWidth ? lines - line : kWidth;
    if (depth_stride == 1) {
      pack_lines<kWidth>(first, line_stride, count, depth, panel);
      continue;
    }
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < kWidth; ++i)
        panel[k * kWidth + i] = i < count ? to_float(first[k * depth_stride + i * line_stride]) : 0.0f;
  }
}

template <typename T>
void pack_a(const MatmulBlock& a, void* panels) {
  pack<kRegisterRows, T>(a.data, a.row_stride, a.column_stride, a.rows, a.columns, a.columns, panels);
}
template <typename T>
void pack_b(const MatmulBlock& b, int64_t panel_depth, void* panels) {
  pack<kRegisterColumns, T>(b.data, b.column_stride, b.row_stride, b.columns, b.rows, panel_depth, panels);
}

void multiply(const void* a_panels, int64_t rows, const void* b_panel, int64_t depth, float* sums, bool accumulate) {
  const float *a = static_cast<const float*>(a_panels), *b = static_cast<const float*>(b_panel);
  for (int64_t k = 0; k < depth; k += kMatmulSummed) {
    const int64_t summed = depth - k < kMatmulSummed ? depth - k : kMatmulSummed;
    for (int64_t m = 0; m < rows; m += kRegisterRows)
      multiply_panels(a + m * depth + k * kRegisterRows, rows - m, b + k * kRegisterColumns, summed,
                      sums + m * kRegisterColumns, accumulate || k > 0);
  }
}

template <typename T>
void store_tile(const float* sums, int64_t rows, int64_t columns, void* out, int64_t out_row_stride,
                bool accumulate) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = sums + m * kRegisterColumns;
    T* to = static_cast<T*>(out) + m * out_row_stride;
    if (accumulate) {
#pragma omp simd
      for (int64_t n = 0; n < columns; ++n) from_float(to_float(to[n]) + from[n], to + n);
    } else if (columns == kRegisterColumns) {
#pragma omp simd
      for (int64_t n = 0; n < kRegisterColumns; ++n) from_float(from[n], to + n);
    } else {
      for (int64_t n = 0; n < columns; ++n) from_float(from[n], to + n);
    }
  }
}

void nothing() {}

constexpr MatmulTable kTable = {
    kRegisterRows,
    kRegisterColumns,
    sizeof(float),
    1,
    1024,
    72 / kRegisterRows,
    kLanes * sizeof(float),
    nothing,
    nothing,
    {pack_a<float>, pack_a<BFloat16>, pack_a<Float16>},
    {pack_b<float>, pack_b<BFloat16>, pack_b<Float16>},
    multiply,
    {store_tile<float>, store_tile<BFloat16>, store_tile<Float16>},
};

}  // namespace

const MatmulTable& matmul_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
