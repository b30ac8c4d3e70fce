#include "collectives/reduction.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/elementwise/cast.h"
#include "kernels/elementwise/elementwise.h"
#include "collectives/call.h"

namespace virtual_npu {
namespace {

using paddle_fused::kernels::cast;
using paddle_fused::kernels::ElementType;

constexpr size_t kBlock = 2048;  // elements summed at a time, small enough for the cache

struct Sum {
  template <typename T>
  static T of(T a, T b) {
    // Integers are added as unsigned, because signed overflow is undefined.
    if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
    else return a + b;
  }
  static bool of(bool a, bool b) { return a | b; }
};
struct Product {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b));
    else return a * b;
  }
  static bool of(bool a, bool b) { return a & b; }
};
// Propagates NaNs, as numpy does.
template <typename T>
constexpr bool has_nan = std::is_floating_point_v<T>;
struct Max {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (has_nan<T>) return a > b || a != a ? a : b;
    else return a > b ? a : b;
  }
};
struct Min {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (has_nan<T>) return a < b || a != a ? a : b;
    else return a < b ? a : b;
  }
};

template <typename Op, typename T>
void add_term(T* __restrict sum, const T* __restrict term, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = Op::of(sum[i], term[i]);
}

// The type in which a block is computed: the elements' type, or float32 for 16-bit elements.
template <typename T>
struct Plain {
  using Value = T;
  static constexpr size_t kSize = sizeof(T);
  static void load(const void* from, T* to, size_t count) { std::memcpy(to, from, count * sizeof(T)); }
  static void store(const T* from, void* to, size_t count) { std::memcpy(to, from, count * sizeof(T)); }
};
template <ElementType kType>
struct Half {
  using Value = float;
  static constexpr size_t kSize = 2;
  static void load(const void* from, float* to, size_t count) {
    cast(kType, from, ElementType::kFloat32, to, int64_t(count));
  }
  static void store(const float* from, void* to, size_t count) {
    cast(ElementType::kFloat32, from, kType, to, int64_t(count));
  }
};

// Reduces a block.
template <typename Element, typename Op, bool kAverage>
void run(const void* const* inputs, int terms, size_t count, void* out) {
  using Value = typename Element::Value;
  alignas(64) Value sum[kBlock], term[kBlock];
  Element::load(inputs[0], sum, count);
  for (int i = 1; i < terms; ++i) {
    Element::load(inputs[i], term, count);
    add_term<Op>(sum, term, count);
  }
  if constexpr (kAverage)
    for (size_t i = 0; i < count; ++i) sum[i] = Value(sum[i] / Value(terms));
  Element::store(sum, out, count);
}
template <ElementType kType>
void sum(const void* const* inputs, int terms, size_t count, void* out) {
  paddle_fused::kernels::sum_terms(kType, terms, int64_t(count), inputs, out);
}

using Function = void (*)(const void* const* inputs, int terms, size_t count, void* out);

template <typename Element>
Function ordered(C_CCLReduceOp op) {
  switch (op) {
    case SUM: return run<Element, Sum, false>;
    case AVG: return run<Element, Sum, true>;
    case MAX: return run<Element, Max, false>;
    case MIN: return run<Element, Min, false>;
    default: return run<Element, Product, false>;
  }
}
template <typename Element>
Function complex(C_CCLReduceOp op) {
  switch (op) {
    case SUM: return run<Element, Sum, false>;
    case AVG: return run<Element, Sum, true>;
    case PRODUCT: return run<Element, Product, false>;
    default: return nullptr;
  }
}
// Sums have a kernel; other reductions are rare.
template <ElementType kType, typename Element>
Function summed(C_CCLReduceOp op) {
  return op == SUM ? sum<kType> : ordered<Element>(op);
}
Function of_bools(C_CCLReduceOp op) {
  using Element = Plain<bool>;
  switch (op) {
    case SUM: case MAX: return run<Element, Sum, false>;
    case PRODUCT: case MIN: return run<Element, Product, false>;
    default: return nullptr;
  }
}

Function function_of(C_DataType dtype, C_CCLReduceOp op) {
  switch (dtype) {
    case BOOL: return of_bools(op);
    case UINT8: return ordered<Plain<uint8_t>>(op);
    case UINT16: return ordered<Plain<uint16_t>>(op);
    case UINT32: return ordered<Plain<uint32_t>>(op);
    case UINT64: return ordered<Plain<uint64_t>>(op);
    case INT8: return ordered<Plain<int8_t>>(op);
    case INT16: return ordered<Plain<int16_t>>(op);
    case INT32: return ordered<Plain<int32_t>>(op);
    case INT64: return ordered<Plain<int64_t>>(op);
    case FLOAT16: return summed<ElementType::kFloat16, Half<ElementType::kFloat16>>(op);
    case BFLOAT16: return summed<ElementType::kBFloat16, Half<ElementType::kBFloat16>>(op);
    case FLOAT32: return summed<ElementType::kFloat32, Plain<float>>(op);
    case FLOAT64: return ordered<Plain<double>>(op);
    case COMPLEX64: return complex<Plain<std::complex<float>>>(op);
    case COMPLEX128: return complex<Plain<std::complex<double>>>(op);
    default: return nullptr;
  }
}

}  // namespace

void reduce(C_DataType dtype, C_CCLReduceOp op, const void* const* inputs, int terms, size_t count, void* out,
            void* copy) {
  const Function run = function_of(dtype, op);
  const size_t element = size_of(dtype);
  std::vector<const void*> block(terms);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin), at = begin * element;
    for (int i = 0; i < terms; ++i) block[i] = static_cast<const char*>(inputs[i]) + at;
    run(block.data(), terms, size, static_cast<char*>(out) + at);
    if (copy) std::memcpy(static_cast<char*>(copy) + at, static_cast<const char*>(out) + at, size * element);
  }
}

const char* reason_against_reduction(C_DataType dtype, C_CCLReduceOp op) {
  if (function_of(dtype, op)) return "";
  if (dtype == COMPLEX64 || dtype == COMPLEX128) return "complex numbers have no order; accepted: sum, avg and prod";
  if (dtype == BOOL) return "bools have no average; accepted: sum and max (any), prod and min (all)";
  return "the element type does not exist";
}

}  // namespace virtual_npu
