// Reduces the ranks' terms in order: out[i] = in[0][i] op in[1][i] op ...
#pragma once
#include <cstddef>

#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

// Terms are added in the order of the inputs, so the bits are deterministic. bfloat16 and float16 are computed in
// float32 and rounded once. Integers wrap around, and their average is truncated. The sum of bools is "any". `out` and
// `copy` may be inputs. `copy` receives the same result as `out`, unless it is nullptr.
void reduce(C_DataType dtype, C_CCLReduceOp op, const void* const* inputs, int terms, size_t count, void* out,
            void* copy = nullptr);

// Why the reduction is not supported (complex numbers have no order, bools no average), for error messages, or "".
const char* reason_against_reduction(C_DataType dtype, C_CCLReduceOp op);

}  // namespace virtual_npu
