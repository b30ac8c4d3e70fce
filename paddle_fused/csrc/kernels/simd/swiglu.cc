#include "kernels/simd/math.h"
#include "kernels/swiglu_table.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
void forward(const void* gate_data, const void* up_data, int64_t count, void* y_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  T* y = static_cast<T*>(y_data);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float a = to_float(gate[i]);
    from_float(a * logistic(a).value * to_float(up[i]), y + i);
  }
}

template <typename T>
void gate_gradient(const void* gate_data, const void* up_data, const void* dy_data, int64_t count, void* dgate_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  const T* dy = static_cast<const T*>(dy_data);
  T* dgate = static_cast<T*>(dgate_data);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float a = to_float(gate[i]);
    const Logistic s = logistic(a);
    from_float(to_float(dy[i]) * to_float(up[i]) * s.value * (1.0f + a * s.complement), dgate + i);
  }
}

template <typename T>
void up_gradient(const void* gate_data, const void* dy_data, int64_t count, void* dup_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* dy = static_cast<const T*>(dy_data);
  T* dup = static_cast<T*>(dup_data);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float a = to_float(gate[i]);
    from_float(to_float(dy[i]) * (a * logistic(a).value), dup + i);
  }
}

constexpr SwigluTable kTable = {
    {forward<float>, forward<BFloat16>, forward<Float16>},
    {gate_gradient<float>, gate_gradient<BFloat16>, gate_gradient<Float16>},
    {up_gradient<float>, up_gradient<BFloat16>, up_gradient<Float16>},
};

}  // namespace

const SwigluTable& swiglu_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
