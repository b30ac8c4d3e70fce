#include "kernels/elementwise/gated_table.h"
#include "kernels/elementwise/simd/gelu_share.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The value of an activation and its derivative.
struct Slope {
  Floats value, slope;
};

struct Silu {
  PF_INLINE Floats value(Floats x) { return silu(x); }
  PF_INLINE Slope slope(Floats x) {
    const Logistics s = logistic(x);
    return {x * s.value, s.value * (1.0f + x * s.complement)};
  }
};

template <typename Form>
struct GeluOf {
  PF_INLINE Floats value(Floats x) { return x * Form::share(x).value; }
  PF_INLINE Slope slope(Floats x) {
    const Share share = Form::share(x);
    return {x * share.value, share.value + share.slope};
  }
};
using Gelu = GeluOf<GeluNormal>;
using TanhGelu = GeluOf<GeluTanh>;

template <typename Activation, typename T>
static inline void multiply(const T* gate, const T* up, int64_t count, T* y) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    const Pair x = load<T>(gate + i, part);
    store<T>(y + i, Pair{Activation::value(x.a), Activation::value(x.b)} * load<T>(up + i, part), part, Cached{});
  });
}

template <typename Activation, typename T>
void forward(const void* gate_data, const void* up_data, int64_t count, bool stream, void* y_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  T* y = static_cast<T*>(y_data);
  if (stream && streams_to(y, 0)) {
    stream_pieces(count, y, [=](int64_t i, int64_t n, T* near) { multiply<Activation>(gate + i, up + i, n, near); });
  } else {
    multiply<Activation>(gate, up, count, y);
  }
}

// dgate and dup may be null.
template <typename Activation, typename T>
static inline void differentiate(const T* gate, const T* up, const T* dy, int64_t count, T* dgate, T* dup) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    const Pair a = load<T>(gate + i, part), b = load<T>(up + i, part), g = load<T>(dy + i, part);
    const Slope first = Activation::slope(a.a), second = Activation::slope(a.b);
    if (dgate) store<T>(dgate + i, g * b * Pair{first.slope, second.slope}, part, Cached{});
    if (dup) store<T>(dup + i, g * Pair{first.value, second.value}, part, Cached{});
  });
}

template <typename Activation, typename T>
void backward(const void* gate_data, const void* up_data, const void* dy_data, int64_t count, bool stream,
              void* dgate_data, void* dup_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  const T* dy = static_cast<const T*>(dy_data);
  T* dgate = static_cast<T*>(dgate_data);
  T* dup = static_cast<T*>(dup_data);
  if (stream && streams_to(dgate, 0) && streams_to(dup, 0)) {
    Piece<T> dgate_piece, dup_piece;
    for (int64_t i = 0; i < count; i += kPiece) {
      const int64_t n = count - i < kPiece ? count - i : kPiece;
      T* dgate_near = dgate ? dgate_piece.elements(dgate + i) : nullptr;
      T* dup_near = dup ? dup_piece.elements(dup + i) : nullptr;
      differentiate<Activation>(gate + i, up + i, dy + i, n, dgate_near, dup_near);
      if (dgate) stream_elements(dgate_near, n, dgate + i);
      if (dup) stream_elements(dup_near, n, dup + i);
    }
    finish_streams();
  } else {
    differentiate<Activation>(gate, up, dy, count, dgate, dup);
  }
}

template <typename Activation>
constexpr GatedKernels kKernels = {
    {forward<Activation, float>, forward<Activation, BFloat16>, forward<Activation, Float16>},
    {backward<Activation, float>, backward<Activation, BFloat16>, backward<Activation, Float16>},
};

#define PF_KERNELS(name, op) kKernels<name>,
constexpr GatedKernels kActivations[] = {PF_ACTIVATIONS(PF_KERNELS)};
constexpr GatedTable kTable = kActivations;

}  // namespace

const GatedTable& gated_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
