#include "virtual_npu/runtime/memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "virtual_npu/runtime/config.h"

namespace virtual_npu {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded(size_t size) {
  const size_t unit = size >= kHugePage ? kHugePage : kAlignment;
  return (size + unit - 1) / unit * unit;
}

void* host_allocate(size_t size) {
  if (size < kHugePage) return std::aligned_alloc(kAlignment, size);
  void* address = std::aligned_alloc(kHugePage, size);
  if (address) madvise(address, size, MADV_HUGEPAGE);
  return address;
}

class Device {
 public:
  void* allocate(size_t requested) {
    const size_t size = rounded(requested);
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t capacity = config().memory_bytes;
    if (size > capacity || used_ > capacity - size) return nullptr;
    void* address = take_kept(size);
    if (!address) {
      if (used_ + kept_bytes_ + size > capacity) free_kept();
      address = host_allocate(size);
      if (!address) {
        free_kept();
        address = host_allocate(size);
      }
    }
    if (address) used_ += size;
    return address;
  }

  void release(void* address, size_t requested) {
    const size_t size = rounded(requested);
    std::lock_guard<std::mutex> lock(mutex_);
    used_ -= size;
    kept_.emplace(size, address);
    kept_bytes_ += size;
  }

  size_t used() {
    std::lock_guard<std::mutex> lock(mutex_);
    return used_;
  }

 private:
  // Only a block of exactly this size: Paddle names the size again when it gives the block back.
  void* take_kept(size_t size) {
    auto found = kept_.find(size);
    if (found == kept_.end()) return nullptr;
    void* address = found->second;
    kept_.erase(found);
    kept_bytes_ -= size;
    return address;
  }

  void free_kept() {
    for (auto& block : kept_) std::free(block.second);
    kept_.clear();
    kept_bytes_ = 0;
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> kept_;
  size_t used_ = 0, kept_bytes_ = 0;
};

Device& device_at(int device) {
  // Never destroyed: Paddle gives memory back after the plugin's static objects are gone.
  static auto* devices = new std::array<Device, 16>;
  return devices->at(device);
}

}  // namespace

void* allocate(int device, size_t size) { return device_at(device).allocate(size); }
void release(int device, void* address, size_t size) { device_at(device).release(address, size); }
size_t used_bytes(int device) { return device_at(device).used(); }

}  // namespace virtual_npu
