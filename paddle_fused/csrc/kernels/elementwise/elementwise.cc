#include "kernels/elementwise/elementwise.h"

#include <cstring>

#include "kernels/elementwise/elementwise_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

const char* at(const void* data, int64_t element, int64_t size) {
  return static_cast<const char*>(data) + element * size;
}

}  // namespace

bool broadcast(const std::vector<int64_t>& x, const std::vector<int64_t>& y, const std::vector<int64_t>& out,
               Broadcast* loops) {
  if (x.size() > out.size() || y.size() > out.size()) return false;
  // From the last dimension to the first. Merges a dimension with the following one if both operands allow it.
  std::vector<int64_t> sizes, x_strides, y_strides;
  int64_t x_step = 1, y_step = 1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t size = out[out.size() - 1 - i];
    const int64_t x_size = i < x.size() ? x[x.size() - 1 - i] : 1, y_size = i < y.size() ? y[y.size() - 1 - i] : 1;
    if ((x_size != size && x_size != 1) || (y_size != size && y_size != 1)) return false;
    if (size == 1) continue;
    const int64_t x_stride = x_size == 1 ? 0 : x_step, y_stride = y_size == 1 ? 0 : y_step;
    x_step *= x_size;
    y_step *= y_size;
    if (!sizes.empty() && x_stride == sizes.back() * x_strides.back() && y_stride == sizes.back() * y_strides.back()) {
      sizes.back() *= size;
    } else {
      sizes.push_back(size);
      x_strides.push_back(x_stride);
      y_strides.push_back(y_stride);
    }
  }
  if (sizes.empty()) sizes = x_strides = y_strides = {1};
  loops->sizes.assign(sizes.rbegin(), sizes.rend());
  loops->x_strides.assign(x_strides.rbegin(), x_strides.rend());
  loops->y_strides.assign(y_strides.rbegin(), y_strides.rend());
  return true;
}

namespace {

using Run = void (*)(const void*, bool, const void*, bool, int64_t, void*);

Run run_of(BinaryOp op, ElementType type) {
  return PF_SELECT_TABLE(elementwise_table).binary[static_cast<int>(op)][static_cast<int>(type)];
}

// One loop over all elements.
void flat(Run run, int64_t bytes, int64_t count, const void* x, bool x_step, const void* y, bool y_step, void* out) {
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    run(at(x, x_step * begin, bytes), x_step, at(y, y_step * begin, bytes), y_step, end - begin,
        static_cast<char*>(out) + begin * bytes);
  });
}

}  // namespace

void binary(BinaryOp op, ElementType type, int64_t count, const void* x, const void* y, void* out) {
  flat(run_of(op, type), element_size(type), count, x, true, y, true, out);
}

void binary(BinaryOp op, ElementType type, const Broadcast& loops, const void* x, const void* y, void* out) {
  const Run run = run_of(op, type);
  const int64_t bytes = element_size(type), width = loops.sizes.back();
  const bool x_step = loops.x_strides.back() != 0, y_step = loops.y_strides.back() != 0;
  const size_t outer = loops.sizes.size() - 1;
  if (outer == 0) return flat(run, bytes, width, x, x_step, y, y_step, out);
  int64_t rows = 1;
  for (size_t d = 0; d < outer; ++d) rows *= loops.sizes[d];
  for_each_range(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, x_offset = 0, y_offset = 0;
      for (size_t d = outer; d-- > 0;) {
        const int64_t index = rest % loops.sizes[d];
        rest /= loops.sizes[d];
        x_offset += index * loops.x_strides[d];
        y_offset += index * loops.y_strides[d];
      }
      run(at(x, x_offset, bytes), x_step, at(y, y_offset, bytes), y_step, width,
          static_cast<char*>(out) + row * width * bytes);
    }
  });
}

void scale(ElementType type, float scale, float bias, int64_t count, const void* x, void* out) {
  const auto run = PF_SELECT_TABLE(elementwise_table).scale[static_cast<int>(type)];
  const int64_t bytes = element_size(type);
  for_each_range(count, 1, [&](int64_t begin, int64_t end) {
    run(scale, bias, end - begin, at(x, begin, bytes), static_cast<char*>(out) + begin * bytes);
  });
}

void sum_rows(ElementType type, int64_t rows, int64_t width, const void* x, void* sums) {
  const auto run = PF_SELECT_TABLE(elementwise_table).sum_rows[static_cast<int>(type)];
  // Whole cache lines per thread, in as few runs as possible, because long runs are read faster.
  constexpr int64_t kLine = 32;
  const int64_t share = (width + omp_get_max_threads() - 1) / omp_get_max_threads();
  const int64_t piece = std::min(kSummedColumns, (share + kLine - 1) / kLine * kLine);
  const int64_t pieces = (width + piece - 1) / piece, bytes = element_size(type);
#pragma omp parallel for schedule(static) if (rows * width > 1 << 14)
  for (int64_t i = 0; i < pieces; ++i)
    run(rows, width, std::min(piece, width - i * piece), at(x, i * piece, bytes),
        static_cast<char*>(sums) + i * piece * bytes);
}

void sum_terms(ElementType type, int64_t terms, int64_t count, const void* const* x, void* out) {
  const auto run = PF_SELECT_TABLE(elementwise_table).sum_terms[static_cast<int>(type)];
  for_each_range(count, 1, [&](int64_t begin, int64_t end) { run(terms, x, begin, end - begin, out); });
}

void copy(const void* from, int64_t bytes, void* to) {
  for_each_range(bytes, 1, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, at(from, begin, 1), end - begin);
  });
}

}  // namespace paddle_fused::kernels
