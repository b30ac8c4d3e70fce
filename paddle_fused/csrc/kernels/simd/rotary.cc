#include "kernels/rotary_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
void forward(const void* x_data, const void* cos_data, const void* sin_data, int64_t num_heads, int64_t head_dim,
             void* y_data) {
  const T* cos = static_cast<const T*>(cos_data);
  const T* sin = static_cast<const T*>(sin_data);
  const int64_t h = head_dim / 2;
  for (int64_t head = 0; head < num_heads; ++head) {
    const T* x = static_cast<const T*>(x_data) + head * head_dim;
    T* y = static_cast<T*>(y_data) + head * head_dim;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) {
      const float a = to_float(x[i]), b = to_float(x[i + h]);
      from_float(a * to_float(cos[i]) - b * to_float(sin[i]), y + i);
      from_float(b * to_float(cos[i + h]) + a * to_float(sin[i + h]), y + i + h);
    }
  }
}

template <typename T>
void backward(const void* dy_data, const void* cos_data, const void* sin_data, int64_t num_heads, int64_t head_dim,
              void* dx_data) {
  const T* cos = static_cast<const T*>(cos_data);
  const T* sin = static_cast<const T*>(sin_data);
  const int64_t h = head_dim / 2;
  for (int64_t head = 0; head < num_heads; ++head) {
    const T* dy = static_cast<const T*>(dy_data) + head * head_dim;
    T* dx = static_cast<T*>(dx_data) + head * head_dim;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) {
      const float da = to_float(dy[i]), db = to_float(dy[i + h]);
      from_float(da * to_float(cos[i]) + db * to_float(sin[i + h]), dx + i);
      from_float(db * to_float(cos[i + h]) - da * to_float(sin[i]), dx + i + h);
    }
  }
}

constexpr RotaryTable kTable = {
    {forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<float>, backward<BFloat16>, backward<Float16>},
};

}  // namespace

const RotaryTable& rotary_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
