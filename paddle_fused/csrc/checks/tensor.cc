#include "checks/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace paddle_fused::checks {
namespace {

constexpr int64_t kFence = 128;
constexpr uint8_t kFenceByte = 0xa5;

struct Format {
  const char* name;
  int precision;     // bits of the significand
  int min_exponent;  // exponent of the smallest normal number
  double largest;
};

Format format(ElementType type) {
  switch (type) {
    case ElementType::kBFloat16:
      return {"bfloat16", 8, -126, 0x1.fep127};
    case ElementType::kFloat16:
      return {"float16", 11, -14, 65504};
    default:
      return {"float32", 24, -126, 0x1.fffffep127};
  }
}

// The bits of a number that is representable in the type.
uint32_t encode(ElementType type, double x) {
  const auto value = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (type == ElementType::kFloat32) return bits;
  if (type == ElementType::kBFloat16) return bits >> 16;
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (std::isinf(x)) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint32_t>(magnitude * 0x1p24);
  int exponent;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  return sign | static_cast<uint32_t>(exponent + 14) << 10 | (static_cast<uint32_t>(fraction * 0x1p11) & 0x3ff);
}

uint64_t random_word() {
  static uint64_t state = 0x9e3779b97f4a7c15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

const char* type_name(ElementType type) { return format(type).name; }

double rounding(ElementType type) { return std::ldexp(1, -format(type).precision); }

double rounded(ElementType type, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const Format f = format(type);
  const int exponent = std::max(std::ilogb(x), f.min_exponent);
  const double unit = std::ldexp(1, exponent - f.precision + 1);
  const double result = std::nearbyint(x / unit) * unit;
  return std::fabs(result) > f.largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : result;
}

Tensor::Tensor(ElementType type, int64_t count)
    : type_(type), count_(count), bytes_(count * element_size(type) + 2 * kFence, kFenceByte) {
  // The element after a multiple of 64 bytes.
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  first_ = static_cast<int64_t>((address + 63) / 64 * 64 - address) + element_size(type);
  std::memset(bytes_.data() + first_, 0xff, count * element_size(type));
}

Tensor Tensor::random(ElementType type, int64_t count, double low, double high) {
  Tensor tensor(type, count);
  for (int64_t i = 0; i < count; ++i) tensor.set(i, random_between(low, high));
  return tensor;
}

void Tensor::set(int64_t i, double value) {
  const uint32_t bits = encode(type_, rounded(type_, value));
  std::memcpy(bytes_.data() + first_ + i * element_size(type_), &bits, element_size(type_));
}

bool Tensor::fences_intact() const {
  const int64_t end = first_ + count_ * element_size(type_);
  for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i)
    if ((i < first_ || i >= end) && bytes_[i] != kFenceByte) return false;
  return true;
}

int64_t random_below(int64_t bound) { return static_cast<int64_t>(random_word() >> 1) % bound; }

double random_between(double low, double high) { return low + (high - low) * std::ldexp(random_word() >> 11, -53); }

}  // namespace paddle_fused::checks
