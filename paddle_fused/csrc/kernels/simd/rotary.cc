#include "kernels/rotary_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// Where the elements of pair i stand in a row.
struct Half {
  static int64_t a(int64_t i, int64_t) { return i; }
  static int64_t b(int64_t i, int64_t pairs) { return i + pairs; }
};
struct Interleave {
  static int64_t a(int64_t i, int64_t) { return 2 * i; }
  static int64_t b(int64_t i, int64_t) { return 2 * i + 1; }
};

template <typename T, typename Mode, bool kBackward>
void rotate(const RotaryRun& run) {
  const int64_t pairs = run.head_dim / 2;
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* __restrict x = static_cast<const T*>(run.x) + row * run.head_dim;
    const T* __restrict cos = static_cast<const T*>(run.cos) + row * run.angle_stride;
    const T* __restrict sin = static_cast<const T*>(run.sin) + row * run.angle_stride;
    T* __restrict y = static_cast<T*>(run.y) + row * run.head_dim;
#pragma omp simd
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t ia = Mode::a(i, pairs), ib = Mode::b(i, pairs);
      const float a = to_float(x[ia]), b = to_float(x[ib]);
      // The backward pass is the transposed matrix: the sines change places and signs.
      const float times_b = to_float(sin[kBackward ? ib : ia]), times_a = to_float(sin[kBackward ? ia : ib]);
      const float sign = kBackward ? -1.0f : 1.0f;
      from_float(a * to_float(cos[ia]) - sign * (b * times_b), y + ia);
      from_float(b * to_float(cos[ib]) + sign * (a * times_a), y + ib);
    }
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
