// Device allocations and the accesses to them, for the checks of VIRTUAL_NPU_CHECK.
//
// While a check is on, Paddle caches no memory (activation.py sets its flags), so a tensor's memory is one allocation.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checks/clocks.h"

namespace virtual_npu {
namespace checks {

// "'matmul' at train.py:12", shared by the accesses of one launch.
using Work = std::shared_ptr<const std::string>;

struct Block {
  void* address;
  size_t bytes;
};

// Paddle rounds the sizes of allocations up to a multiple of this number of bytes.
constexpr size_t kRounding = 512;
// Bytes behind every allocation that nothing may write.
constexpr size_t kRedZone = 512;

// Memory of the plugin's allocator, with a red zone behind it. Called while Paddle holds the lock of its allocator: no Python, no exceptions.
void track(void* address, size_t bytes);
// Returns the blocks that the allocator may reuse now: freed memory stays in quarantine for some time.
std::vector<Block> untrack(void* address, size_t bytes);

// Raises a finding of the memory check if new work on a stream may reuse memory that other work still uses: memory of this
// stream that was released without a wait since. Allocators reuse it in the order of this stream.
void check_reuse(Actor stream, const Work& work);

// A range of device memory that work uses. `tensor` describes it: "its input 1 (float32 [2, 3])".
struct Range {
  const void* address;
  size_t bytes;
  bool writes;
  std::string tensor;
  size_t alignment = 1;  // bytes
};

// Raises a finding of the memory check if the range is misaligned or not inside an allocation.
void check_bounds(const Range& range, const Work& work);
// Records that a tensor uses the range, whose memory is not part of a red zone.
void use_until(const Range& range);
// Raises a finding of the memory check if something has written behind the range, where no tensor is.
void check_red_zone(const Range& range, const Work& work);
// Adds an access, and raises a finding of the race check if an earlier access is not ordered before it.
void check_order(const Range& range, Epoch epoch, const Work& work);

// Whether the memory may contain poison. False for host memory.
bool may_be_unwritten(const void* address);
void set_written(const void* address);
// Names the work that allocated the memory, unless it is known.
void name_origin(const void* address, const Work& work);
// The work that allocated the memory, or nullptr.
Work origin_of(const void* address);

}  // namespace checks
}  // namespace virtual_npu
