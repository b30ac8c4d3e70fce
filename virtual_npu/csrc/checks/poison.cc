#include "checks/poison.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace virtual_npu {
namespace checks {
namespace {

using phi::DataType;

constexpr uint16_t kWord = 0x7fa5;
constexpr uint32_t kTwoWords = 0x7fa57fa5;
constexpr uint64_t kFourWords = 0x7fa57fa57fa57fa5;
constexpr uint16_t kQuietWord = 0x0040;
constexpr uint32_t kQuiet = 0x00400000;
constexpr uint64_t kNaN64 = 0x7ff4000000000000;

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void store(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// Whether a value is poison. Blocks have no branches, so that the compiler vectorizes the loop.
template <typename T>
bool any_equal(const char* data, int64_t count, T ignored, T poison) {
  constexpr int64_t kBlock = 4096;
  const T* values = reinterpret_cast<const T*>(data);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    T any = 0;
    for (int64_t i = begin; i < end; ++i) any |= T((values[i] & T(~ignored)) == poison);
    if (any) return true;
  }
  return false;
}

}  // namespace

void poison(void* memory, size_t bytes) {
  auto* words = static_cast<uint16_t*>(memory);
  std::fill(words, words + bytes / 2, kWord);
  if (bytes % 2) static_cast<char*>(memory)[bytes - 1] = char(kWord & 0xff);
}

size_t overwritten(const char* memory, size_t bytes, size_t offset) {
  for (size_t last = bytes; last > 0; --last)
    if (uint8_t(memory[last - 1]) != ((offset + last - 1) % 2 ? kWord >> 8 : kWord & 0xff)) return last;
  return 0;
}

Elements::Elements(const phi::DenseTensor& tensor)
    : dtype_(tensor.dtype()),
      contiguous_(tensor.meta().is_contiguous()),
      data_(static_cast<char*>(tensor.Holder()->ptr()) + tensor.meta().offset),
      count_(tensor.numel()),
      size_(phi::SizeOf(tensor.dtype())) {
  if (contiguous_) return;
  for (int i = 0; i < tensor.dims().size(); ++i) {
    dims_.push_back(tensor.dims()[i]);
    strides_.push_back(tensor.strides()[i]);
  }
}

bool Elements::is_float() const {
  return dtype_ == DataType::FLOAT32 || dtype_ == DataType::BFLOAT16 || dtype_ == DataType::FLOAT16 ||
         dtype_ == DataType::FLOAT64;
}

char* Elements::address(int64_t element) const {
  if (contiguous_) return data_ + element * size_;
  int64_t offset = 0;
  for (size_t i = dims_.size(); i-- > 0;) {
    offset += element % dims_[i] * strides_[i];
    element /= dims_[i];
  }
  return data_ + offset * int64_t(size_);
}

// One byte does not identify poison, except in a bool.
bool Elements::is_poison(const char* at) const {
  switch (size_) {
    case 1:
      return dtype_ == DataType::BOOL && uint8_t(*at) > 1;
    case 2:
      return (load<uint16_t>(at) & (is_float() ? ~kQuietWord : 0xffff)) == kWord;
    case 4:
      return (load<uint32_t>(at) & (is_float() ? ~kQuiet : ~0u)) == kTwoWords;
    case 8:
      return load<uint64_t>(at) == kFourWords;
    default:
      return load<uint64_t>(at) == kFourWords && load<uint64_t>(at + 8) == kFourWords;
  }
}

bool Elements::has_poison() const {
  if (contiguous_) {
    const bool floats = is_float();
    if (size_ == 2) return any_equal<uint16_t>(data_, count_, floats ? kQuietWord : 0, kWord);
    if (size_ == 4) return any_equal<uint32_t>(data_, count_, floats ? kQuiet : 0, kTwoWords);
    if (size_ == 8) return any_equal<uint64_t>(data_, count_, 0, kFourWords);
    if (size_ == 1 && dtype_ != DataType::BOOL) return false;
  }
  for (int64_t i = 0; i < count_; ++i)
    if (is_poison(i)) return true;
  return false;
}

std::vector<bool> Elements::poisoned() const {
  std::vector<bool> found(count_);
  for (int64_t i = 0; i < count_; ++i) found[i] = is_poison(i);
  return found;
}

bool Elements::is_nan(int64_t element) const {
  const char* at = address(element);
  switch (dtype_) {
    case DataType::FLOAT32:
      return std::isnan(load<float>(at));
    case DataType::FLOAT64:
      return std::isnan(load<double>(at));
    case DataType::BFLOAT16:
      return (load<uint16_t>(at) & 0x7fff) > 0x7f80;
    case DataType::FLOAT16:
      return (load<uint16_t>(at) & 0x7fff) > 0x7c00;
    default:
      return false;
  }
}

void Elements::poison(int64_t element) const { checks::poison(address(element), size_); }

void Elements::fill(int64_t element, Filler filler) const {
  char* at = address(element);
  if (filler == Filler::kNaN) {
    if (dtype_ == DataType::FLOAT64) return store(at, kNaN64);
    if (is_float()) return poison(element);
  }
  std::memset(at, 0, size_);
  if (filler == Filler::kZero) return;
  switch (dtype_) {
    case DataType::FLOAT32:
      return store(at, 1.0f);
    case DataType::FLOAT64:
      return store(at, 1.0);
    case DataType::BFLOAT16:
      return store(at, uint16_t(0x3f80));
    case DataType::FLOAT16:
      return store(at, uint16_t(0x3c00));
    case DataType::COMPLEX64:
      return store(at, 1.0f);
    case DataType::COMPLEX128:
      return store(at, 1.0);
    default:
      *at = 1;  // integers and bool, little-endian
  }
}

}  // namespace checks
}  // namespace virtual_npu
