#include "runtime/memory.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "checks/allocations.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded(size_t size) {
  const size_t unit = size >= kHugePage ? kHugePage : kAlignment;
  return (size + unit - 1) / unit * unit;
}

// Reserves addresses without memory. Pages read as zeros, and only written pages use memory.
void* reserve_addresses(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  madvise(address, size, MADV_NOHUGEPAGE);
  return address;
}

void* host_allocate(size_t size) {
  if (config().checks) size += checks::kRedZone;
  if (size < kHugePage) return std::aligned_alloc(kAlignment, size);
  void* address = std::aligned_alloc(kHugePage, size);
  if (address) madvise(address, size, MADV_HUGEPAGE);
  return address;
}

// Freed blocks, shared by all devices: they are host memory, whichever device they were counted for.
class BlockCache {
 public:
  // Returns only a block of exactly this size, because Paddle states the size again when it frees the block.
  void* take(size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(size);
    if (found == blocks_.end()) return nullptr;
    void* address = found->second;
    blocks_.erase(found);
    bytes_ -= size;
    return address;
  }

  void keep(size_t size, void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    // Deferred work may still use the block.
    if (!config().defer && bytes_ + size > config().memory_bytes / 4) return std::free(address);
    try {
      blocks_.emplace(size, address);
      bytes_ += size;
    } catch (const std::bad_alloc&) {
      std::free(address);
    }
  }

  void free_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& block : blocks_) std::free(block.second);
    blocks_.clear();
    bytes_ = 0;
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, void*> blocks_;
  size_t bytes_ = 0;
};

// Never destroyed, because Paddle frees memory after the plugin's static objects are gone.
BlockCache& block_cache() {
  static auto* cache = new BlockCache;
  return *cache;
}
std::atomic<size_t>& used(int device) {
  static auto* used = new std::array<std::atomic<size_t>, 16>{};
  return (*used)[device];
}

// Adds `size` to the used bytes, unless this exceeds the capacity.
bool reserve(std::atomic<size_t>& used, size_t size) {
  const size_t capacity = config().memory_bytes;
  size_t now = used.load();
  do {
    if (size > capacity || now > capacity - size) return false;
  } while (!used.compare_exchange_weak(now, now + size));
  return true;
}

}  // namespace

void* allocate(int device, size_t requested) {
  const size_t size = rounded(requested);
  if (!reserve(used(device), size)) return nullptr;
  if (config().dry) {
    void* address = reserve_addresses(size);
    if (!address) used(device) -= size;
    return address;
  }
  void* address = block_cache().take(size);
  if (!address) address = host_allocate(size);
  if (!address) {
    block_cache().free_all();
    address = host_allocate(size);
  }
  if (!address) used(device) -= size;
  if (address && config().checks) checks::track(address, size);
  return address;
}

void release(int device, void* address, size_t requested) {
  const size_t size = rounded(requested);
  used(device) -= size;
  if (config().dry) {
    munmap(address, size);
  } else if (config().checks) {
    for (const checks::Block& block : checks::untrack(address, size)) block_cache().keep(block.bytes, block.address);
  } else {
    block_cache().keep(size, address);
  }
}

size_t used_bytes(int device) { return used(device); }

}  // namespace virtual_npu
