// Elements that lie apart, copied to where they lie one after another: what makes a view dense.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// out = the elements of `data` in the order of their indices, the last of which runs fastest.
// Element (i, j, ...) stands at data[i * strides[0] + j * strides[1] + ...]; sizes and strides count elements, a stride
// may be 0 or negative. element_size: 1, 2, 4, 8 or 16 bytes. On all threads.
PF_EXPORT void make_contiguous(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                          int64_t element_size, void* out);

}  // namespace paddle_fused::kernels
