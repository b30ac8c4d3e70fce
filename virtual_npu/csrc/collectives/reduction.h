// One rank's term after the other: out[i] = in[0][i] op in[1][i] op ...
#pragma once
#include <cstddef>

#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

// The order is that of the inputs, so the bits depend on nothing else. bfloat16 and float16 are computed in float32 and
// rounded once; integers wrap around, and their average is truncated; of bools the sum is
// "any". `out` may be one of the inputs. `copy`, which may be one too, receives the same as `out`; nullptr if nothing does.
void reduce(C_DataType dtype, C_CCLReduceOp op, const void* const* inputs, int terms, size_t count, void* out,
            void* copy = nullptr);

// Why there is no such reduction, for the user: complex numbers have no order, bools no average. "" if there is one.
const char* reason_against_reduction(C_DataType dtype, C_CCLReduceOp op);

}  // namespace virtual_npu
