#include "kernels/elementwise/swiglu_table.h"
#include "kernels/simd/vector_math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
static inline void multiply(const T* gate, const T* up, int64_t count, T* y) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    store<T>(y + i, silu(load<T>(gate + i, part)) * load<T>(up + i, part), part, Cached{});
  });
}

template <typename T>
void forward(const void* gate_data, const void* up_data, int64_t count, bool stream, void* y_data) {
  const T* gate = static_cast<const T*>(gate_data);
  const T* up = static_cast<const T*>(up_data);
  T* y = static_cast<T*>(y_data);
  if (stream && streams_to(y, 0)) {
    stream_pieces(count, y, [=](int64_t i, int64_t n, T* near) { multiply(gate + i, up + i, n, near); });
  } else {
    multiply(gate, up, count, y);
  }
}

struct Gradients {
  Floats gate, up;
};
PF_INLINE Gradients gradients(Floats a, Floats up, Floats dy) {
  const Logistics s = logistic(a);
  return {dy * up * s.value * (1.0f + a * s.complement), dy * (a * s.value)};
}

// dgate and dup may be null.
template <typename T>
static inline void differentiate(const T* gate, const T* up, const T* dy, int64_t count, T* dgate, T* dup) {
  for_each_pair(0, count, [=](int64_t i, auto part) {
    const Pair a = load<T>(gate + i, part), b = load<T>(up + i, part), g = load<T>(dy + i, part);
    const Gradients first = gradients(a.a, b.a, g.a), second = gradients(a.b, b.b, g.b);
    if (dgate) store<T>(dgate + i, Pair{first.gate, second.gate}, part, Cached{});
    if (dup) store<T>(dup + i, Pair{first.up, second.up}, part, Cached{});
  });
}

template <typename T>
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
      differentiate(gate + i, up + i, dy + i, n, dgate_near, dup_near);
      if (dgate) stream_elements(dgate_near, n, dgate + i);
      if (dup) stream_elements(dup_near, n, dup + i);
    }
    finish_streams();
  } else {
    differentiate(gate, up, dy, count, dgate, dup);
  }
}

constexpr SwigluTable kTable = {
    {forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<float>, backward<BFloat16>, backward<Float16>},
};

}  // namespace

const SwigluTable& swiglu_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
