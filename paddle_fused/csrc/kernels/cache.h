// This process's estimated share of the machine's last-level cache. For host code, never for simd/.
#pragma once
#include <cstdint>

namespace paddle_fused::kernels {

// Whether the inputs and outputs of a call, `bytes` in total, exceed the last-level cache. If so, the beginning of an
// output is evicted before the next operator reads it. Kernels then use streaming stores, because an ordinary store
// to an uncached line reads the line first.
bool outgrows_cache(int64_t bytes);

}  // namespace paddle_fused::kernels
