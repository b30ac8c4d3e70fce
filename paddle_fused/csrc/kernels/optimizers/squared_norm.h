// The sum of squares of an array: what the clipping of gradients by their norm reads them for.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Partial sums in float32 over ranges that depend on the count only, added in double: the same for any number of threads.
PF_EXPORT double squared_norm(ElementType type, const void* x, int64_t count);

}  // namespace paddle_fused::kernels
