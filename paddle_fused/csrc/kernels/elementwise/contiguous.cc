#include "kernels/elementwise/contiguous.h"

#include <complex>
#include <cstring>
#include <utility>

#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"
#include "kernels/shuffle.h"

namespace paddle_fused::kernels {
namespace {

struct Dimension {
  int64_t size, stride;  // of the view, in elements
  int64_t out_stride;    // of the result
};
using Dimensions = std::vector<Dimension>;

// The dimensions with more than one element, merged where adjacent dimensions form one.
Dimensions merged(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  Dimensions found;
  int64_t out_stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {  // last dimension first
    if (!found.empty() && strides[i] == found.back().stride * found.back().size)
      found.back().size *= sizes[i];
    else if (sizes[i] > 1)
      found.push_back({sizes[i], strides[i], out_stride});
    out_stride *= sizes[i];
  }
  return {found.rbegin(), found.rend()};
}

int64_t count(const Dimensions& dimensions) {
  int64_t product = 1;
  for (const Dimension& each : dimensions) product *= each.size;
  return product;
}

// The position of entry `number` of all dimensions.
struct Place {
  int64_t in = 0, out = 0;

  Place(const Dimensions& dimensions, int64_t number) {
    for (size_t i = dimensions.size(); i-- > 0;) {
      const Dimension& each = dimensions[i];
      in += number % each.size * each.stride;
      out += number % each.size * each.out_stride;
      number /= each.size;
    }
  }
};

// Runs that are dense in the view as well.
template <typename T>
void copy_pieces(const T* data, const Dimensions& outer, int64_t length, T* out) {
  for_each_range(count(outer), length, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Place place(outer, i);
      std::memcpy(out + place.out, data + place.in, length * sizeof(T));
    }
  });
}

// Transposes a square with as many rows as a vector has elements. Every step interleaves rows of its halves.
template <typename T>
struct Square {
  static constexpr int kSize = 16 / sizeof(T);
  typedef T Vector __attribute__((vector_size(16)));

  template <int kFirst, size_t... kAt>
  static Vector interleaved(Vector a, Vector b, std::index_sequence<kAt...>) {
    return PF_SHUFFLE(a, b, (kFirst + kAt / 2 + (kAt % 2 ? kSize : 0))...);
  }

  static void transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
    constexpr std::make_index_sequence<kSize> all;
    Vector rows[kSize], next[kSize];
    for (int i = 0; i < kSize; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(Vector));
    for (int step = 1; step < kSize; step *= 2) {
      for (int i = 0; i < kSize / 2; ++i) {
        next[2 * i] = interleaved<0>(rows[i], rows[i + kSize / 2], all);
        next[2 * i + 1] = interleaved<kSize / 2>(rows[i], rows[i + kSize / 2], all);
      }
      std::copy(next, next + kSize, rows);
    }
    for (int i = 0; i < kSize; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Vector));
  }
};
template <>
struct Square<std::complex<double>> {
  static constexpr int kSize = 1;
  static void transpose(const std::complex<double>* from, int64_t, std::complex<double>* to, int64_t) { *to = *from; }
};

// Transposed matrices: `across` is dense in the view, `along` in the result. A tile has several cache lines of both.
// The lines of the view are prefetched explicitly, because hardware does not prefetch lines that are whole rows
// apart. The result goes through a separate tile, because rows a power of two apart would evict each other.
template <typename T>
void transpose(const T* data, const Dimensions& outer, const Dimension& across, const Dimension& along, T* out) {
  constexpr int64_t kLine = 64 / sizeof(T), kRows = 4 * kLine, kColumns = 2 * kLine;
  constexpr int64_t kSquare = Square<T>::kSize, kAhead = 16;
  const int64_t strips = (across.size + kRows - 1) / kRows;
  for_each_range(count(outer) * strips, kRows * along.size, [&](int64_t first, int64_t last) {
    T tile[kRows * kColumns];
    for (int64_t strip = first; strip < last; ++strip) {
      const Place place(outer, strip / strips);
      const int64_t row = strip % strips * kRows, rows = std::min(kRows, across.size - row);
      const T* from = data + place.in + row;
      T* to = out + place.out + row * across.out_stride;
      for (int64_t column = 0; column < along.size; column += kColumns, to += kColumns) {
        const int64_t columns = std::min(kColumns, along.size - column);
        for (int64_t c = 0; c < columns; c += kSquare) {
          const T* at = from + (column + c) * along.stride;
          for (int64_t i = kAhead; i < kAhead + kSquare && column + c + i < along.size; ++i)
            for (int64_t r = 0; r < rows; r += kLine) __builtin_prefetch(at + i * along.stride + r);
          const bool whole = c + kSquare <= columns;
          const int64_t squares = whole ? rows / kSquare * kSquare : 0;
          for (int64_t r = 0; r < squares; r += kSquare)
            Square<T>::transpose(at + r, along.stride, tile + r * kColumns + c, kColumns);
          for (int64_t i = 0; i < std::min(kSquare, columns - c); ++i)
            for (int64_t r = squares; r < rows; ++r) tile[r * kColumns + c + i] = at[i * along.stride + r];
        }
        for (int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * kColumns, columns, to + r * across.out_stride);
      }
    }
  });
}

template <typename T>
void copy_elements(const T* data, const Dimensions& outer, const Dimension& inner, T* out) {
  for_each_range(count(outer), inner.size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Place place(outer, i);
      for (int64_t j = 0; j < inner.size; ++j) out[place.out + j] = data[place.in + j * inner.stride];
    }
  });
}

template <typename T>
void copy(const void* from, Dimensions dimensions, void* to) {
  const T* data = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  if (dimensions.empty()) dimensions.push_back({1, 1, 1});
  const Dimension inner = dimensions.back();
  dimensions.pop_back();
  if (inner.stride == 1) return copy_pieces(data, dimensions, inner.size, out);
  const auto dense = std::find_if(dimensions.begin(), dimensions.end(), [](const Dimension& x) { return x.stride == 1; });
  if (dense == dimensions.end()) return copy_elements(data, dimensions, inner, out);
  const Dimension across = *dense;
  dimensions.erase(dense);
  transpose(data, dimensions, across, inner, out);
}

}  // namespace

void make_contiguous(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                int64_t element_size, void* out) {
  if (compute_is_disabled() || std::count(sizes.begin(), sizes.end(), 0)) return;
  const Dimensions dimensions = merged(sizes, strides);
  switch (element_size) {
    case 1: return copy<uint8_t>(data, dimensions, out);
    case 2: return copy<uint16_t>(data, dimensions, out);
    case 4: return copy<uint32_t>(data, dimensions, out);
    case 8: return copy<uint64_t>(data, dimensions, out);
    default: return copy<std::complex<double>>(data, dimensions, out);
  }
}

}  // namespace paddle_fused::kernels
