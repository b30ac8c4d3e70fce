#pragma once
#include <string>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_factory.h"

namespace virtual_npu {

// The npu kernel `name` for `type`, as the typed function that dygraph calls. This looks it up in Paddle's table, so
// cache the result.
template <typename Function>
Function npu_kernel(const phi::CustomContext& context, const std::string& name, phi::DataType type) {
  const phi::KernelKey key(phi::TransToPhiBackend(context.GetPlace()), phi::DataLayout::ALL_LAYOUT, type);
  return phi::KernelFactory::Instance().SelectKernelOrThrowError(name, key).kernel.GetVariadicKernelFn<Function>();
}

}  // namespace virtual_npu
