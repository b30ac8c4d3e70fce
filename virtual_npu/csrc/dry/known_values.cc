#include "dry/known_values.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "paddle/phi/core/enforce.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace dry {
namespace {

using Address = uintptr_t;

struct Range {
  Address end = 0;
  bool known = false;
  phi::DataType dtype = phi::DataType::UNDEFINED;
  std::string by;
};

// Ranges by start address. They do not overlap.
struct Memory {
  std::mutex mutex;
  std::map<Address, Range> ranges;
};
Memory& memory() {
  static auto* memory = new Memory;
  return *memory;
}

// The first range that ends after `address`.
std::map<Address, Range>::iterator first_behind(Address address) {
  auto& ranges = memory().ranges;
  auto found = ranges.upper_bound(address);
  if (found != ranges.begin() && std::prev(found)->second.end > address) --found;
  return found;
}

void set(const void* at, size_t size, Range range) {
  if (size == 0) return;
  const Address begin = reinterpret_cast<Address>(at), end = begin + size;
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& ranges = memory().ranges;
  for (auto old = first_behind(begin); old != ranges.end() && old->first < end;) {
    const Address old_begin = old->first;
    Range rest = std::move(old->second);
    old = ranges.erase(old);
    if (old_begin < begin) {
      Range before = rest;
      before.end = begin;
      ranges.emplace(old_begin, std::move(before));
    }
    if (rest.end > end) old = ranges.emplace(end, std::move(rest)).first;
  }
  range.end = end;
  ranges.emplace(begin, std::move(range));
}

Range range_at(const void* address) {
  const Address begin = reinterpret_cast<Address>(address);
  std::lock_guard<std::mutex> lock(memory().mutex);
  const auto found = first_behind(begin);
  return found != memory().ranges.end() && found->first <= begin ? found->second : Range{};
}

const void* address_of(const phi::DenseTensor& tensor) {
  return static_cast<const char*>(tensor.Holder()->ptr()) + tensor.meta().offset;
}

size_t bytes_of(const phi::DenseTensor& tensor) { return tensor.numel() * phi::SizeOf(tensor.dtype()); }

bool has_memory(const phi::DenseTensor& tensor) { return tensor.initialized() && tensor.numel() > 0; }

bool decides(phi::DataType dtype) {
  switch (dtype) {
    case phi::DataType::BOOL:
    case phi::DataType::UINT8:
    case phi::DataType::INT8:
    case phi::DataType::INT16:
    case phi::DataType::INT32:
    case phi::DataType::INT64:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void refuse(const std::string& reader, const Range& range) {
  PADDLE_THROW(common::errors::Unimplemented(
      "%s reads %s values that '%s' would compute on a card. Dry mode (VIRTUAL_NPU_DRY=1) does not compute values, so "
      "shapes and branches of the program must not depend on them. Use a form of the model that does not read them, or "
      "unset VIRTUAL_NPU_DRY.",
      reader, phi::DataTypeToString(range.dtype), range.by));
}

// Zeroes host memory without touching whole pages of it.
void clear(void* at, size_t size) {
  const Address page = Address(sysconf(_SC_PAGESIZE));
  const Address begin = reinterpret_cast<Address>(at), end = begin + size;
  const Address first = (begin + page - 1) / page * page, last = end / page * page;
  constexpr size_t kManyPages = size_t{1} << 20;
  if (size < kManyPages || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(at, 0, size);
    return;
  }
  std::memset(at, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

}  // namespace

size_t small(phi::DataType dtype) { return decides(dtype) ? kSmallIntegers : kSmall; }

void set_known(const void* address, size_t size) {
  Range range;
  range.known = true;
  set(address, size, std::move(range));
}

void set_unknown(const void* address, size_t size, phi::DataType dtype, const std::string& by) {
  Range range;
  range.dtype = dtype;
  range.by = by;
  set(address, size, std::move(range));
}

void set_known(const phi::DenseTensor& tensor) {
  if (has_memory(tensor)) set_known(address_of(tensor), bytes_of(tensor));
}

void set_unknown(const phi::DenseTensor& tensor, const std::string& by) {
  if (!has_memory(tensor)) return;
  const bool dense = tensor.meta().is_contiguous();
  const void* begin = dense ? address_of(tensor) : tensor.Holder()->ptr();
  set_unknown(begin, dense ? bytes_of(tensor) : tensor.Holder()->size(), tensor.dtype(), by);
}

bool is_known(const void* address, size_t size) {
  const Range range = range_at(address);
  return range.known && range.end >= reinterpret_cast<Address>(address) + size;
}

bool is_known(const phi::DenseTensor& tensor) {
  if (tensor.numel() == 0) return true;
  if (!tensor.initialized()) return false;
  if (bytes_of(tensor) > small(tensor.dtype())) return false;
  if (tensor.place().GetType() == phi::AllocationType::CPU) return true;
  return tensor.meta().is_contiguous() && is_known(address_of(tensor), bytes_of(tensor));
}

void to_device(void* to, const void* from, size_t size) {
  if (size > kSmallIntegers) return set_unknown(to, size, phi::DataType::UNDEFINED, "a copy from the host");
  std::memcpy(to, from, size);
  set_known(to, size);
}

void to_host(void* to, const void* from, size_t size) {
  // Paddle copies the whole allocation, even if the tensor uses only its beginning.
  const Range range = range_at(from);
  if (!range.known) {
    if (decides(range.dtype)) refuse("The host", range);
    return clear(to, size);
  }
  const size_t held = std::min(size, size_t(range.end - reinterpret_cast<Address>(from)));
  std::memcpy(to, from, held);
  std::memset(static_cast<char*>(to) + held, 0, size - held);
}

void on_device(void* to, const void* from, size_t size) {
  const Range range = range_at(from);
  if (range.known && size <= kSmallIntegers) {
    const size_t held = std::min(size, size_t(range.end - reinterpret_cast<Address>(from)));
    std::memmove(to, from, held);
    return set_known(to, held);
  }
  set_unknown(to, size, range.dtype, range.by);
}

void fill(void* at, unsigned char value, size_t size) {
  if (size > kSmallIntegers) return set_unknown(at, size, phi::DataType::UNDEFINED, "a fill of memory");
  std::memset(at, value, size);
  set_known(at, size);
}

void check_known(const char* op, const char* what, const phi::DenseTensor& tensor) {
  if (!config().dry || !has_memory(tensor) || is_known(address_of(tensor), bytes_of(tensor))) return;
  Range range = range_at(address_of(tensor));
  range.dtype = tensor.dtype();
  refuse(std::string(op) + " (its argument " + what + ")", range);
}

}  // namespace dry
}  // namespace virtual_npu
