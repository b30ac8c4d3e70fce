// The contents of device memory that has not been written, which the init check recognizes.
//
// Memory is filled with the 16-bit word 0x7fa5: a signalling NaN as bfloat16 and, repeated, as float32; a NaN as float16;
// a huge number as an integer. Arithmetic sets the quiet bit of a NaN and keeps the rest, so quiet poison counts as poison.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {
namespace checks {

void poison(void* memory, size_t bytes);
// The number of leading bytes until the last one that is not poison. `memory` starts `offset` bytes behind poisoned memory.
size_t overwritten(const char* memory, size_t bytes, size_t offset);

// Values that replace poison in the inputs of a kernel. A result that differs between them depends on the poison.
enum class Filler { kZero, kOne, kNaN };

// A tensor's elements in memory order of its shape; strided tensors are supported.
class Elements {
 public:
  explicit Elements(const phi::DenseTensor& tensor);

  int64_t count() const { return count_; }
  size_t size() const { return size_; }
  bool is_float() const;
  bool has_poison() const;
  // One entry for each element.
  std::vector<bool> poisoned() const;
  bool is_poison(int64_t element) const { return is_poison(address(element)); }
  bool is_nan(int64_t element) const;
  void poison(int64_t element) const;
  void fill(int64_t element, Filler filler) const;
  char* address(int64_t element) const;

 private:
  bool is_poison(const char* at) const;

  phi::DataType dtype_;
  std::vector<int64_t> dims_, strides_;
  bool contiguous_;
  char* data_;
  int64_t count_;
  size_t size_;
};

}  // namespace checks
}  // namespace virtual_npu
