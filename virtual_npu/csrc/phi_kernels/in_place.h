#pragma once
#include <cstring>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {

// The memory of `output`, on the place of `input` and with its values. In-place updates of the output are then
// correct whether or not the caller passed the same memory for both.
inline void* carry_over(const phi::CustomContext& context, const phi::DenseTensor& input, phi::DenseTensor* output) {
  const void* source = input.data();
  output->Resize(input.dims());
  void* target = input.place().GetType() == phi::AllocationType::CPU ? context.HostAlloc(output, input.dtype())
                                                                     : context.Alloc(output, input.dtype());
  if (target != source) std::memcpy(target, source, input.numel() * phi::SizeOf(input.dtype()));
  return target;
}

}  // namespace virtual_npu
