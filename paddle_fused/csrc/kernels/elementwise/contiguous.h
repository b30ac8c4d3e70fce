// Copies a strided view to contiguous memory.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// out = the elements of `data` in row-major order.
// Element (i, j, ...) is at data[i * strides[0] + j * strides[1] + ...]. Sizes and strides are in elements; strides
// may be 0 or negative. element_size: 1, 2, 4, 8 or 16 bytes. Uses all threads.
PF_EXPORT void make_contiguous(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                          int64_t element_size, void* out);

}  // namespace paddle_fused::kernels
