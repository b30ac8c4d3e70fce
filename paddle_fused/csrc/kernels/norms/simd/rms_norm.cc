#include "kernels/norms/rms_norm_table.h"
#include "kernels/simd/vectors.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// T is the type of x, G the type of gamma. While a row is stored, the next one is prefetched (`next`).
template <typename T, typename G, typename Where>
static inline float normalise_row(const T* x, const G* gamma, float epsilon, int64_t width, T* y, Where where,
                                  const T* next) {
  using Main = MainOf<T, G>;
  const double squares = sum_of_pairs(width, [=](int64_t i, auto part) {
    const Pair v = load<Main>(x + i, part);
    return v * v;
  });
  const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + epsilon);
  for_each_pair(0, width, [=](int64_t i, auto part) {
    const Pair normal = rounded<Main, G>(load<Main>(x + i, part) * r);
    store<Main>(y + i, normal * load<Main>(gamma + i, part), part, where);
    __builtin_prefetch(next + i);
  });
  return r;
}

template <typename T, typename G, typename Where>
static inline void normalise(const T* x, const G* gamma, float epsilon, int64_t rows, int64_t width, T* y, float* rstd,
                             Where where) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width)
    rstd[row] = normalise_row(x, gamma, epsilon, width, y, where, x + width);
}

template <typename T, typename G>
void forward(const void* x_data, const void* gamma_data, float epsilon, int64_t rows, int64_t width, bool stream,
             void* y_data, float* rstd) {
  const T* x = static_cast<const T*>(x_data);
  const G* gamma = static_cast<const G*>(gamma_data);
  T* y = static_cast<T*>(y_data);
  if (stream && streams_to(y, width * sizeof(T))) {
    normalise(x, gamma, epsilon, rows, width, y, rstd, Streamed{});
    finish_streams();
  } else {
    normalise(x, gamma, epsilon, rows, width, y, rstd, Cached{});
  }
}

// again[width] holds the row of the sum until it is normalized, because a streamed sum is no longer in the caches.
template <typename T, typename Where>
static inline void add_and_normalise(const T* x, const T* residual, const T* gamma, float epsilon, int64_t rows,
                                     int64_t width, T* again, T* y, T* sum, float* rstd, Where where) {
  for (int64_t row = 0; row < rows; ++row) {
    const double squares = sum_of_pairs(width, [=](int64_t i, auto part) {
      const Pair v = load<T>(x + i, part) + load<T>(residual + i, part);
      store<T>(sum + i, v, part, where);
      store<T>(again + i, v, part, Cached{});
      const Pair r = rounded<T, T>(v);
      return r * r;
    });
    const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + epsilon);
    for_each_pair(0, width, [=](int64_t i, auto part) {
      const Pair normal = rounded<T, T>(load<T>(again + i, part) * r);
      store<T>(y + i, normal * load<T>(gamma + i, part), part, where);
      __builtin_prefetch(x + width + i);
      __builtin_prefetch(residual + width + i);
    });
    rstd[row] = r;
    x += width, residual += width, y += width, sum += width;
  }
}

template <typename T>
void add_forward(const void* x_data, const void* residual_data, const void* gamma_data, float epsilon, int64_t rows,
                 int64_t width, bool stream, void* again_data, void* y_data, void* sum_data, float* rstd) {
  const T* x = static_cast<const T*>(x_data);
  const T* residual = static_cast<const T*>(residual_data);
  const T* gamma = static_cast<const T*>(gamma_data);
  T* y = static_cast<T*>(y_data);
  T* again = static_cast<T*>(again_data);
  T* sum = static_cast<T*>(sum_data);
  if (stream && streams_to(y, width * sizeof(T)) && streams_to(sum, 0)) {
    add_and_normalise(x, residual, gamma, epsilon, rows, width, again, y, sum, rstd, Streamed{});
    finish_streams();
  } else {
    add_and_normalise(x, residual, gamma, epsilon, rows, width, again, y, sum, rstd, Cached{});
  }
}

// Four rows are processed at a time, so gamma and dgamma are still cached when they are needed again.
constexpr int64_t kTogether = 4;

template <typename T, typename G, typename Where>
static inline void gradients(const T* dy, const T* x, const float* rstd, const G* gamma, const T* dsum, int64_t rows,
                             int64_t width, T* dx, T* dresidual, float* dgamma, Where where) {
  using Main = MainOf<T, G>;
  for (int64_t first = 0; first < rows; first += kTogether) {
    const int64_t last = first + kTogether < rows ? first + kTogether : rows;
    Sum projected[kTogether];
    for_each_block(width, [&](int64_t begin, int64_t end) {
      for (int64_t row = first; row < last; ++row) {
        const T *dy_row = dy + row * width, *x_row = x + row * width;
        const float r = rstd[row];
        // x is scaled by rstd before the product, because x^3 of large activations would overflow.
        add_block(projected[row - first], begin, end, [=](int64_t i, auto part) {
          return load<Main>(dy_row + i, part) * load<Main>(gamma + i, part) * (load<Main>(x_row + i, part) * r);
        });
      }
    });
    float mean[kTogether];
    for (int64_t row = first; row < last; ++row)
      mean[row - first] = static_cast<float>(total(projected[row - first]) / static_cast<double>(width));
    for_each_block(width, [&](int64_t begin, int64_t end) {
      for (int64_t row = first; row < last; ++row) {
        const T *dy_row = dy + row * width, *x_row = x + row * width;
        const T* dsum_row = dsum ? dsum + row * width : nullptr;
        T* dx_row = dx + row * width;
        T* dresidual_row = dresidual ? dresidual + row * width : nullptr;
        const float r = rstd[row], m = mean[row - first];
        for_each_pair(begin, end, [=](int64_t i, auto part) {
          const Pair normal = load<Main>(x_row + i, part) * r, g = load<Main>(dy_row + i, part);
          // dgamma is in the order of T's Pairs until all rows are added.
          const Pair sum = load<float>(dgamma + i, Whole{}) + g * rounded<Main, G>(normal);
          store<float>(dgamma + i, sum, Whole{}, Cached{});
          Pair gradient = (g * load<Main>(gamma + i, part) - normal * m) * r;
          if (dsum_row) gradient = gradient + load<Main>(dsum_row + i, part);
          store<Main>(dx_row + i, gradient, part, where);
          if (dresidual_row) store<Main>(dresidual_row + i, gradient, part, where);
          __builtin_prefetch(dy_row + kTogether * width + i);
          __builtin_prefetch(x_row + kTogether * width + i);
        });
      }
    });
  }
}

template <typename T, typename G>
void backward(const void* dy_data, const void* x_data, const float* rstd, const void* gamma_data,
              const void* dsum_data, int64_t rows, int64_t width, bool stream, void* dx_data, void* dresidual_data,
              float* dgamma) {
  const T* dy = static_cast<const T*>(dy_data);
  const T* x = static_cast<const T*>(x_data);
  const G* gamma = static_cast<const G*>(gamma_data);
  const T* dsum = static_cast<const T*>(dsum_data);
  T* dx = static_cast<T*>(dx_data);
  T* dresidual = static_cast<T*>(dresidual_data);
  if (stream && streams_to(dx, width * sizeof(T)) && streams_to(dresidual, 0)) {
    gradients(dy, x, rstd, gamma, dsum, rows, width, dx, dresidual, dgamma, Streamed{});
    finish_streams();
  } else {
    gradients(dy, x, rstd, gamma, dsum, rows, width, dx, dresidual, dgamma, Cached{});
  }
  for (int64_t i = 0; i < width; i += kPair)
    store<MainOf<T, G>>(dgamma + i, load<float>(dgamma + i, Whole{}), Whole{}, Cached{});
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
