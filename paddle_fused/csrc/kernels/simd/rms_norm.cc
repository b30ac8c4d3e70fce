#include "kernels/rms_norm_table.h"
#include "kernels/simd/math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// T is the type of x, G that of gamma.
template <typename T, typename G>
static inline float normalise_row(const T* x, const G* gamma, float epsilon, int64_t width, T* y) {
  const double squares = sum(width, [x](int64_t i) { return to_float(x[i]) * to_float(x[i]); });
  const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + epsilon);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    G normal;
    from_float(to_float(x[i]) * r, &normal);
    from_float(to_float(normal) * to_float(gamma[i]), y + i);
  }
  return r;
}

template <typename T, typename G>
void forward(const void* x, const void* gamma, float epsilon, int64_t rows, int64_t width, void* y, float* rstd) {
  for (int64_t row = 0; row < rows; ++row)
    rstd[row] = normalise_row(static_cast<const T*>(x) + row * width, static_cast<const G*>(gamma), epsilon, width,
                              static_cast<T*>(y) + row * width);
}

template <typename T>
void add_forward(const void* x_data, const void* residual_data, const void* gamma, float epsilon, int64_t rows,
                 int64_t width, void* y, void* sum_data, float* rstd) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = static_cast<const T*>(x_data) + row * width;
    const T* residual = static_cast<const T*>(residual_data) + row * width;
    T* sum = static_cast<T*>(sum_data) + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) from_float(to_float(x[i]) + to_float(residual[i]), sum + i);
    rstd[row] = normalise_row(sum, static_cast<const T*>(gamma), epsilon, width, static_cast<T*>(y) + row * width);
  }
}

template <typename T, typename G>
void backward(const void* dy_data, const void* x_data, const float* rstd, const void* gamma_data,
              const void* dsum_data, int64_t rows, int64_t width, void* dx_data, float* dgamma) {
  const G* gamma = static_cast<const G*>(gamma_data);
  for (int64_t row = 0; row < rows; ++row) {
    const T* dy = static_cast<const T*>(dy_data) + row * width;
    const T* x = static_cast<const T*>(x_data) + row * width;
    T* dx = static_cast<T*>(dx_data) + row * width;
    const float r = rstd[row];
    // x is scaled by rstd before the product: x^3 of large activations would overflow.
    const double projected =
        sum(width, [=](int64_t i) { return to_float(dy[i]) * to_float(gamma[i]) * (to_float(x[i]) * r); });
    const float mean = static_cast<float>(projected / static_cast<double>(width));
    const auto gradient = [=](int64_t i) {
      const float normal = to_float(x[i]) * r, g = to_float(dy[i]);
      G rounded;
      from_float(normal, &rounded);
      dgamma[i] += g * to_float(rounded);
      return (g * to_float(gamma[i]) - normal * mean) * r;
    };
    if (dsum_data) {
      const T* dsum = static_cast<const T*>(dsum_data) + row * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) from_float(gradient(i) + to_float(dsum[i]), dx + i);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) from_float(gradient(i), dx + i);
    }
  }
}

constexpr RmsNormTable kTable = {
    {{forward<float, float>, forward<float, float>},
     {forward<BFloat16, BFloat16>, forward<BFloat16, float>},
     {forward<Float16, Float16>, forward<Float16, float>}},
    {add_forward<float>, add_forward<BFloat16>, add_forward<Float16>},
    {{backward<float, float>, backward<float, float>},
     {backward<BFloat16, BFloat16>, backward<BFloat16, float>},
     {backward<Float16, Float16>, backward<Float16, float>}},
};

}  // namespace

const RmsNormTable& rms_norm_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
