#include "kernels/rms_norm_table.h"
#include "kernels/simd/math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
void forward(const void* x_data, const void* gamma_data, float epsilon, int64_t rows, int64_t width, void* y_data,
             float* rstd) {
  const T* gamma = static_cast<const T*>(gamma_data);
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = static_cast<const T*>(x_data) + row * width;
    T* y = static_cast<T*>(y_data) + row * width;
    const double squares = sum(width, [x](int64_t i) { return to_float(x[i]) * to_float(x[i]); });
    const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + epsilon);
    rstd[row] = r;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      T normal;
      from_float(to_float(x[i]) * r, &normal);
      from_float(to_float(normal) * to_float(gamma[i]), y + i);
    }
  }
}

template <typename T>
void backward(const void* dy_data, const void* x_data, const float* rstd, const void* gamma_data, int64_t rows,
              int64_t width, void* dx_data, float* dgamma) {
  const T* gamma = static_cast<const T*>(gamma_data);
  for (int64_t row = 0; row < rows; ++row) {
    const T* dy = static_cast<const T*>(dy_data) + row * width;
    const T* x = static_cast<const T*>(x_data) + row * width;
    T* dx = static_cast<T*>(dx_data) + row * width;
    const float r = rstd[row];
    // x is scaled by rstd before the product: x^3 of large activations would overflow.
    const double projected =
        sum(width, [=](int64_t i) { return to_float(dy[i]) * to_float(gamma[i]) * (to_float(x[i]) * r); });
    const float mean = static_cast<float>(projected / static_cast<double>(width));
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float normal = to_float(x[i]) * r, g = to_float(dy[i]);
      T rounded;
      from_float(normal, &rounded);
      dgamma[i] += g * to_float(rounded);
      from_float((g * to_float(gamma[i]) - normal * mean) * r, dx + i);
    }
  }
}

constexpr RmsNormTable kTable = {
    {forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<float>, backward<BFloat16>, backward<Float16>},
};

}  // namespace

const RmsNormTable& rms_norm_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
