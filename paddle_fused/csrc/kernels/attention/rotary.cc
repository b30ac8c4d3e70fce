#include "kernels/attention/rotary.h"

#include "kernels/attention/rotary_table.h"
#include "kernels/cache.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

int index_of(RotaryMode mode) { return static_cast<int>(mode); }
int index_of(ElementType type) { return static_cast<int>(type); }

// Rows are numbered over all leading dimensions. A run of rows stays within the last of these.
void rotate(void (*run)(const RotaryRun&), ElementType type, const RotaryShape& shape, const void* x, const void* cos,
            const void* sin, void* y) {
  const int64_t row_bytes = shape.head_dim * element_size(type);
  // No structured bindings: clang before 16 cannot capture them in a lambda.
  const int64_t outer = shape.dims[0], middle = shape.dims[1], inner = shape.dims[2];
  const int64_t angle_outer = shape.angle_dims[0], angle_middle = shape.angle_dims[1],
                angle_inner = shape.angle_dims[2];
  const bool stream = outgrows_cache(2 * outer * middle * inner * row_bytes);
  for_each_range(outer * middle * inner, shape.head_dim, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t k = begin % inner, j = begin / inner % middle, i = begin / inner / middle;
      const int64_t rows = std::min(end - begin, inner - k);
      const int64_t angle =
          ((i % angle_outer) * angle_middle + j % angle_middle) * angle_inner + k % angle_inner;
      run({static_cast<const char*>(x) + begin * row_bytes, static_cast<const char*>(cos) + angle * row_bytes,
           static_cast<const char*>(sin) + angle * row_bytes, static_cast<char*>(y) + begin * row_bytes, rows,
           shape.head_dim, angle_inner == 1 ? 0 : shape.head_dim, stream});
      begin += rows;
    }
  });
}

}  // namespace

void rotary_forward(ElementType type, const RotaryShape& shape, const void* x, const void* cos, const void* sin,
                    void* y) {
  if (compute_is_disabled()) return;
  const auto run = PF_SELECT_TABLE(rotary_table).forward[index_of(shape.mode)][index_of(type)];
  rotate(run, type, shape, x, cos, sin, y);
}

void rotary_backward(ElementType type, const RotaryShape& shape, const void* dy, const void* cos, const void* sin,
                     void* dx) {
  if (compute_is_disabled()) return;
  const auto run = PF_SELECT_TABLE(rotary_table).backward[index_of(shape.mode)][index_of(type)];
  rotate(run, type, shape, dy, cos, sin, dx);
}

void rotary_angle_gradients(ElementType type, const RotaryShape& shape, const void* x, const void* dy, void* dcos,
                            void* dsin) {
  if (compute_is_disabled()) return;
  const auto add = PF_SELECT_TABLE(rotary_table).add_angle_gradients[index_of(shape.mode)][index_of(type)];
  const auto store = PF_SELECT_TABLE(rotary_table).store[index_of(type)];
  const int64_t width = shape.head_dim, row_bytes = width * element_size(type);
  const int64_t outer = shape.dims[0], middle = shape.dims[1], inner = shape.dims[2];
  const int64_t angle_outer = shape.angle_dims[0], angle_middle = shape.angle_dims[1],
                angle_inner = shape.angle_dims[2];
  // The number of rows of x, along each dimension, that share a row of the angles.
  const int64_t of_outer = angle_outer == outer ? 1 : outer, of_middle = angle_middle == middle ? 1 : middle,
                of_inner = angle_inner == inner ? 1 : inner;
  const int64_t angle_rows = angle_outer * angle_middle * angle_inner;
  ThreadWorkspace<double> workspace(2 * width);
  for_each_range(angle_rows, width * of_outer * of_middle * of_inner, [&](int64_t begin, int64_t end) {
    double* sums = workspace.of_this_thread();
    for (int64_t row = begin; row < end; ++row) {
      std::fill_n(sums, 2 * width, 0.0);
      const int64_t k = row % angle_inner, j = row / angle_inner % angle_middle, i = row / angle_inner / angle_middle;
      for (int64_t di = 0; di < of_outer; ++di) {
        for (int64_t dj = 0; dj < of_middle; ++dj) {
          const int64_t first = (((i + di) * middle + j + dj) * inner + k) * row_bytes;
          add({static_cast<const char*>(x) + first, static_cast<const char*>(dy) + first, of_inner, width, sums,
               sums + width});
        }
      }
      store(sums, width, static_cast<char*>(dcos) + row * row_bytes);
      store(sums + width, width, static_cast<char*>(dsin) + row * row_bytes);
    }
  });
}

}  // namespace paddle_fused::kernels
