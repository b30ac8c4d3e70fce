#include "kernels/elementwise/elementwise_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

struct Add {
  static float of(float a, float b) { return a + b; }
};
struct Multiply {
  static float of(float a, float b) { return a * b; }
};

template <typename Op, typename T>
void binary(const void* x_data, bool x_step, const void* y_data, bool y_step, int64_t count, void* out_data) {
  const T* x = static_cast<const T*>(x_data);
  const T* y = static_cast<const T*>(y_data);
  T* out = static_cast<T*>(out_data);
  if (x_step && y_step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) from_float(Op::of(to_float(x[i]), to_float(y[i])), out + i);
    return;
  }
  // Both operations commute.
  const float one = to_float(x_step ? *y : *x);
  const T* many = x_step ? x : y;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(Op::of(to_float(many[i]), one), out + i);
}

template <typename T>
void scale(float factor, float bias, int64_t count, const void* x_data, void* out_data) {
  const T* x = static_cast<const T*>(x_data);
  T* out = static_cast<T*>(out_data);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(factor * to_float(x[i]) + bias, out + i);
}

template <typename T>
void sum_rows(int64_t rows, int64_t stride, int64_t columns, const void* x_data, void* sums_data) {
  const T* x = static_cast<const T*>(x_data);
  T* sums = static_cast<T*>(sums_data);
  float total[kSummedColumns];
  for (int64_t j = 0; j < columns; ++j) total[j] = to_float(x[j]);
  int64_t i = 1;
  for (; i + 4 <= rows; i += 4) {  // each sum is loaded and stored once per four rows
    const T *a = x + i * stride, *b = a + stride, *c = b + stride, *d = c + stride;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j)
      total[j] = total[j] + to_float(a[j]) + to_float(b[j]) + to_float(c[j]) + to_float(d[j]);
  }
  for (; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) total[j] += to_float(x[i * stride + j]);
  for (int64_t j = 0; j < columns; ++j) from_float(total[j], sums + j);
}

template <typename T>
void sum_terms(int64_t terms, const void* const* x, int64_t begin, int64_t count, void* out_data) {
  constexpr int64_t kBlock = 1024;  // sums that stay in the L1 cache
  float sums[kBlock];
  const auto term = [&](int64_t t) { return static_cast<const T*>(x[t]) + begin; };
  T* const out = static_cast<T*>(out_data) + begin;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = count - first < kBlock ? count - first : kBlock;
    const T *a = term(0) + first, *last = term(terms - 1) + first;
    T* to = out + first;
    if (terms == 1) {
      for (int64_t i = 0; i < size; ++i) to[i] = a[i];
    } else if (terms == 2) {
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) from_float(to_float(a[i]) + to_float(last[i]), to + i);
    } else {
      const T* b = term(1) + first;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) sums[i] = to_float(a[i]) + to_float(b[i]);
      for (int64_t t = 2; t < terms - 1; ++t) {
        const T* c = term(t) + first;
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) sums[i] += to_float(c[i]);
      }
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) from_float(sums[i] + to_float(last[i]), to + i);
    }
  }
}

constexpr ElementwiseTable kTable = {
    {{binary<Add, float>, binary<Add, BFloat16>, binary<Add, Float16>},
     {binary<Multiply, float>, binary<Multiply, BFloat16>, binary<Multiply, Float16>}},
    {scale<float>, scale<BFloat16>, scale<Float16>},
    {sum_terms<float>, sum_terms<BFloat16>, sum_terms<Float16>},
    {sum_rows<float>, sum_rows<BFloat16>, sum_rows<Float16>},
};

}  // namespace

const ElementwiseTable& elementwise_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
