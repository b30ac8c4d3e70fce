#include "kernels/elementwise/gelu_table.h"
#include "kernels/elementwise/simd/gelu_share.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename Form, typename T>
static inline void apply(const T* x, int64_t count, T* y) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    const Pair v = load<T>(x + i, part);
    store<T>(y + i, v * Pair{Form::share(v.a).value, Form::share(v.b).value}, part, Cached{});
  });
}

template <typename Form, typename T>
static inline void differentiate(const T* x, const T* dy, int64_t count, T* dx) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    const Pair v = load<T>(x + i, part), g = load<T>(dy + i, part);
    const Share first = Form::share(v.a), second = Form::share(v.b);
    store<T>(dx + i, g * Pair{first.value + first.slope, second.value + second.slope}, part, Cached{});
  });
}

template <typename Form, typename T>
void forward(const void* x_data, int64_t count, bool stream, void* y_data) {
  const T* x = static_cast<const T*>(x_data);
  T* y = static_cast<T*>(y_data);
  if (stream && streams_to(y, 0)) {
    stream_pieces(count, y, [=](int64_t i, int64_t n, T* near) { apply<Form>(x + i, n, near); });
  } else {
    apply<Form>(x, count, y);
  }
}

template <typename Form, typename T>
void backward(const void* x_data, const void* dy_data, int64_t count, bool stream, void* dx_data) {
  const T* x = static_cast<const T*>(x_data);
  const T* dy = static_cast<const T*>(dy_data);
  T* dx = static_cast<T*>(dx_data);
  if (stream && streams_to(dx, 0)) {
    stream_pieces(count, dx, [=](int64_t i, int64_t n, T* near) { differentiate<Form>(x + i, dy + i, n, near); });
  } else {
    differentiate<Form>(x, dy, count, dx);
  }
}

constexpr GeluTable kTable = {
    {{forward<GeluNormal, float>, forward<GeluNormal, BFloat16>, forward<GeluNormal, Float16>},
     {forward<GeluTanh, float>, forward<GeluTanh, BFloat16>, forward<GeluTanh, Float16>}},
    {{backward<GeluNormal, float>, backward<GeluNormal, BFloat16>, backward<GeluNormal, Float16>},
     {backward<GeluTanh, float>, backward<GeluTanh, BFloat16>, backward<GeluTanh, Float16>}},
};

}  // namespace

const GeluTable& gelu_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
