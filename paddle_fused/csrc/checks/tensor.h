// Test tensors, and the rounding of element types, implemented independently of the kernels.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/elements.h"

namespace paddle_fused::checks {

using kernels::ElementType;

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16};

const char* type_name(ElementType type);
// Half the distance between 1 and the next larger number.
double rounding(ElementType type);
// The nearest number in `type`, ties to even.
double rounded(ElementType type, double x);

// The number represented by these bits.
inline double decode(ElementType type, uint32_t bits) {
  if (type == ElementType::kBFloat16) bits <<= 16;
  double factor = 1;
  if (type == ElementType::kFloat16) {
    // Moves fraction and exponent to their places in a float, with an exponent bias of 112. Handles infinity and NaN.
    const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    bits = (bits & 0x8000) << 16 | (bits & 0x7fff) << 13 | special;
    factor = 0x1p112;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value * factor;
}

// `count` elements at an address aligned to the element size only, between fences: bytes that kernels must not write.
class Tensor {
 public:
  // Uninitialized: every element is a NaN.
  Tensor(ElementType type, int64_t count);
  // Uniformly distributed in [low, high), the same in every process.
  static Tensor random(ElementType type, int64_t count, double low = -1, double high = 1);

  ElementType type() const { return type_; }
  int64_t count() const { return count_; }
  void* data() { return bytes_.data() + first_; }
  const void* data() const { return bytes_.data() + first_; }
  float* floats() { return static_cast<float*>(data()); }

  double operator[](int64_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes_.data() + first_ + i * element_size(type_), element_size(type_));
    return decode(type_, bits);
  }
  void set(int64_t i, double value);
  bool fences_intact() const;

 private:
  ElementType type_;
  int64_t count_;
  int64_t first_;
  std::vector<uint8_t> bytes_;
};

// A number in [0, bound) from the random sequence of Tensor::random.
int64_t random_below(int64_t bound);
double random_between(double low, double high);

}  // namespace paddle_fused::checks
