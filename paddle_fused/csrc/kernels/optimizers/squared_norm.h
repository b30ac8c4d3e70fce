// The sum of squares of an array, for gradient clipping by norm.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Partial sums in float32 over ranges that depend only on the count, added in double: the same for any number of
// threads.
PF_EXPORT double squared_norm(ElementType type, const void* x, int64_t count);

}  // namespace paddle_fused::kernels
