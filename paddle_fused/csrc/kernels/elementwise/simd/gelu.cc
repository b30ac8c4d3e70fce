#include "kernels/elementwise/gelu_table.h"
#include "kernels/simd/vector_math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The share of x that passes, and its derivative times x.
struct Share {
  Floats value, slope;
};

// The normal distribution's cumulative function, whose derivative is e^(-x^2 / 2) / sqrt(2 pi). On the side of the
// smaller tail it is e^(-x^2 / 2) times a function that falls from 1/2 like 1 / |x|: a polynomial in 1 / (1 + c |x|), the
// best of its degree for relative errors, which stay below 3e-8.
struct Normal {
  PF_INLINE Share share(Floats x) {
    const Floats e = exp_not_positive(x * x * -0.5f);
    const Floats t = 1.0f / (1.0f - negative_magnitude(x) * 0.45f);
    const Floats u = t * 2.0f - 1.0f;
    Floats tail = u * 7.700992171e-05f - 2.102200082e-04f;
    tail = tail * u - 1.627069143e-04f;
    tail = tail * u + 1.445903321e-03f;
    tail = tail * u - 8.327412975e-04f;
    tail = tail * u - 8.763255827e-03f;
    tail = tail * u + 1.012754895e-02f;
    tail = tail * u + 1.023806200e-01f;
    tail = tail * u + 2.407942214e-01f;
    tail = (tail * u + 1.551436079e-01f) * e;
    return {by_sign(x, tail, 1.0f - tail), x * e * 0.39894228f};
  }
};

struct Tanh {
  PF_INLINE Share share(Floats x) {
    // Beyond 12 the share is 0 or 1, and the cube of larger numbers could be infinite.
    const Floats near = -at_least(-at_least(x, -12.0f), -12.0f), square = near * near;
    const Logistics s = logistic(near * (square * 0.07135481627f + 1.595769122f));
    return {s.value, near * s.value * s.complement * (square * 0.2140644488f + 1.595769122f)};
  }
};

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
    {{forward<Normal, float>, forward<Normal, BFloat16>, forward<Normal, Float16>},
     {forward<Tanh, float>, forward<Tanh, BFloat16>, forward<Tanh, Float16>}},
    {{backward<Normal, float>, backward<Normal, BFloat16>, backward<Normal, Float16>},
     {backward<Tanh, float>, backward<Tanh, BFloat16>, backward<Tanh, Float16>}},
};

}  // namespace

const GeluTable& gelu_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
