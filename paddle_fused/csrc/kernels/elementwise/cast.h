// y[i] = (To) x[i] for float32, bfloat16 and float16, rounding to nearest even.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

PF_EXPORT void cast(ElementType from, const void* x, ElementType to, void* y, int64_t count);

}  // namespace paddle_fused::kernels
