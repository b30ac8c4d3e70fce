// The size of the machine's last cache, as far as it can be ours. For host code, never for simd/.
#pragma once
#include <cstdint>

namespace paddle_fused::kernels {

// Whether what a call reads and writes, `bytes` in all, is more than the last cache holds. Then the head of its outputs
// has left the cache before the next operator reads it, and kernels stream their stores past the caches: an ordinary
// store of a line that is not there reads the line first.
bool outgrows_cache(int64_t bytes);

}  // namespace paddle_fused::kernels
