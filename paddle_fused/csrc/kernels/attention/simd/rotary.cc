#include "kernels/attention/rotary_table.h"
#include "kernels/simd/vectors.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The positions of the elements of pair i in a row, and the number of pairs in two registers each of a and b (or one
// of each). load and store access a row, starting with pair i.
struct Half {
  static int64_t a(int64_t i, int64_t) { return i; }
  static int64_t b(int64_t i, int64_t pairs) { return i + pairs; }

  static constexpr int64_t kPairs = kPair;
  struct Operands {
    Pair a, b;
  };
  template <typename T>
  static inline Operands load(const T* row, int64_t i, int64_t pairs) {
    return {PF_TARGET::load<T>(row + i, Whole{}), PF_TARGET::load<T>(row + i + pairs, Whole{})};
  }
  template <typename T, typename Where>
  static inline void store(T* row, int64_t i, int64_t pairs, const Operands& y, Where where) {
    PF_TARGET::store<T>(row + i, y.a, Whole{}, where);
    PF_TARGET::store<T>(row + i + pairs, y.b, Whole{}, where);
  }
};
struct Interleave {
  static int64_t a(int64_t i, int64_t) { return 2 * i; }
  static int64_t b(int64_t i, int64_t) { return 2 * i + 1; }

  static constexpr int64_t kPairs = kFloats;
  struct Operands {
    Floats a, b;
  };
  template <typename T>
  static inline Operands load(const T* row, int64_t i, int64_t) {
    const Pair v = load_own_order(row + 2 * i);
    const Pair pairs = kIsEvenOdd<T> ? v : split(v);
    return {pairs.a, pairs.b};
  }
  template <typename T, typename Where>
  static inline void store(T* row, int64_t i, int64_t, const Operands& y, Where where) {
    const Pair pairs{y.a, y.b};
    store_own_order<T>(row + 2 * i, kIsEvenOdd<T> ? pairs : join(pairs), where);
  }
};

// The backward pass is the transposed matrix: the sines are swapped and negated.
template <bool kBackward, typename Operands>
static inline Operands rotated(const Operands& x, const Operands& cos, const Operands& sin) {
  if (kBackward) return {x.a * cos.a + x.b * sin.b, x.b * cos.b - x.a * sin.a};
  return {x.a * cos.a - x.b * sin.a, x.b * cos.b + x.a * sin.b};
}

template <typename T, typename Mode, bool kBackward, typename Where>
static inline void rotate_rows(const RotaryRun& run, Where where) {
  struct Scalars {
    float a, b;
  };
  const int64_t pairs = run.head_dim / 2;
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* __restrict x = static_cast<const T*>(run.x) + row * run.head_dim;
    const T* __restrict cos = static_cast<const T*>(run.cos) + row * run.angle_stride;
    const T* __restrict sin = static_cast<const T*>(run.sin) + row * run.angle_stride;
    T* __restrict y = static_cast<T*>(run.y) + row * run.head_dim;
    int64_t i = 0;
    for (; i + Mode::kPairs <= pairs; i += Mode::kPairs)
      Mode::store(y, i, pairs,
                  rotated<kBackward>(Mode::load(x, i, pairs), Mode::load(cos, i, pairs), Mode::load(sin, i, pairs)),
                  where);
    for (; i < pairs; ++i) {
      const int64_t ia = Mode::a(i, pairs), ib = Mode::b(i, pairs);
      const auto scalars = [=](const T* v) { return Scalars{to_float(v[ia]), to_float(v[ib])}; };
      const Scalars result = rotated<kBackward>(scalars(x), scalars(cos), scalars(sin));
      from_float(result.a, y + ia);
      from_float(result.b, y + ib);
    }
  }
}

template <typename T, typename Mode, bool kBackward>
void rotate(const RotaryRun& run) {
  // Half a row, because the two halves are stored separately.
  if (run.stream && streams_to(run.y, run.head_dim / 2 * static_cast<int64_t>(sizeof(T)))) {
    rotate_rows<T, Mode, kBackward>(run, Streamed{});
    finish_streams();
  } else {
    rotate_rows<T, Mode, kBackward>(run, Cached{});
  }
}

template <typename T, typename Mode>
void add_angle_gradients(const RotarySums& s) {
  const int64_t pairs = s.head_dim / 2;
  double* __restrict dcos = s.dcos;
  double* __restrict dsin = s.dsin;
  for (int64_t row = 0; row < s.rows; ++row) {
    const T* __restrict x = static_cast<const T*>(s.x) + row * s.head_dim;
    const T* __restrict dy = static_cast<const T*>(s.dy) + row * s.head_dim;
#pragma omp simd
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t ia = Mode::a(i, pairs), ib = Mode::b(i, pairs);
      const double a = to_float(x[ia]), b = to_float(x[ib]), da = to_float(dy[ia]), db = to_float(dy[ib]);
      dcos[ia] += da * a;
      dsin[ia] -= da * b;
      dcos[ib] += db * b;
      dsin[ib] += db * a;
    }
  }
}

template <typename T>
void store(const double* sums, int64_t count, void* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(static_cast<float>(sums[i]), static_cast<T*>(out) + i);
}

constexpr RotaryTable kTable = {
    {{rotate<float, Half, false>, rotate<BFloat16, Half, false>, rotate<Float16, Half, false>},
     {rotate<float, Interleave, false>, rotate<BFloat16, Interleave, false>, rotate<Float16, Interleave, false>}},
    {{rotate<float, Half, true>, rotate<BFloat16, Half, true>, rotate<Float16, Half, true>},
     {rotate<float, Interleave, true>, rotate<BFloat16, Interleave, true>, rotate<Float16, Interleave, true>}},
    {{add_angle_gradients<float, Half>, add_angle_gradients<BFloat16, Half>, add_angle_gradients<Float16, Half>},
     {add_angle_gradients<float, Interleave>, add_angle_gradients<BFloat16, Interleave>,
      add_angle_gradients<Float16, Interleave>}},
    {store<float>, store<BFloat16>, store<Float16>},
};

}  // namespace

const RotaryTable& rotary_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
