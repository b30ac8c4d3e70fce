// The differences between the supported Paddle releases, 3.0 to 3.3. No other file depends on the release.
// PADDLE_VERSION_NUMBER is the version of the wheel whose headers are compiled: 30202 for 3.2.2.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "paddle/common/ddim.h"
#include "paddle/phi/api/all.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/backends/stream.h"
#include "paddle/phi/core/dense_tensor.h"

namespace paddle_fused::paddle_release {

// Tensor::contiguous is const since 3.1.
inline paddle::Tensor contiguous(paddle::Tensor tensor) { return tensor.contiguous(); }

// Before 3.1, Paddle considers an output without elements, which has no memory, uninitialized and raises an error.
// This function allocates some.
inline void give_memory([[maybe_unused]] paddle::Tensor* output) {
#if PADDLE_VERSION_NUMBER < 30100
  if (!output->defined() || output->initialized() || output->numel() != 0) return;
  const paddle::Tensor one = paddle::empty({1}, output->dtype(), output->place());
  auto* dense = static_cast<phi::DenseTensor*>(output->impl().get());
  dense->ShareBufferWith(static_cast<const phi::DenseTensor&>(*one.impl()));
#endif
}

template <typename Function, Function function>
struct WithMemory;
template <typename... Arguments, std::vector<paddle::Tensor> (*function)(Arguments...)>
struct WithMemory<std::vector<paddle::Tensor> (*)(Arguments...), function> {
  static std::vector<paddle::Tensor> call(Arguments... arguments) {
    std::vector<paddle::Tensor> outputs = function(std::forward<Arguments>(arguments)...);
    for (paddle::Tensor& output : outputs) give_memory(&output);
    return outputs;
  }
};

// PD_KERNEL for an operator function with possibly empty outputs.
#define PF_KERNEL(function) \
  PD_KERNEL(::paddle_fused::paddle_release::WithMemory<decltype(&function), &function>::call)

// The current stream of a context, as required by communicators: a Stream in 3.0, a stream_t since 3.1.
class CurrentStream {
 public:
  explicit CurrentStream(const phi::CustomContext& context) : context_(context) {}
  operator phi::stream::stream_t() const { return context_.stream(); }
  operator const phi::stream::Stream&() const { return *context_.GetStream(); }

 private:
  const phi::CustomContext& context_;
};

// Whether two mesh axes shard the same dimension, which placements support since 3.1.
template <typename TensorDistAttr>
bool is_co_shard([[maybe_unused]] const TensorDistAttr& attr) {
#if PADDLE_VERSION_NUMBER >= 30100
  return attr.is_co_shard();
#else
  return false;
#endif
}

// Since 3.1, the collectives of a program run in a context of their communicator, a null pointer unless it was
// created. In 3.0, they run in the context of the device.
template <typename Communicator>
bool lacks_context([[maybe_unused]] Communicator& communicator) {
#if PADDLE_VERSION_NUMBER >= 30100
  return !communicator.GetDevContext();
#else
  return false;
#endif
}

template <typename Communicator>
void set_context([[maybe_unused]] Communicator* communicator,
                 [[maybe_unused]] std::unique_ptr<phi::CustomContext> context) {
#if PADDLE_VERSION_NUMBER >= 30100
  communicator->SetDevContext(std::move(context));
#endif
}

// Since 3.2, Paddle asks the plugin whether its devices support float16 and bfloat16. Before, it assumed so.
template <typename Interface, typename Supported>
void set_low_precision([[maybe_unused]] Interface* interface, [[maybe_unused]] Supported supported) {
#if PADDLE_VERSION_NUMBER >= 30200
  interface->is_float16_supported = supported;
  interface->is_bfloat16_supported = supported;
#endif
}

}  // namespace paddle_fused::paddle_release

namespace virtual_npu {
namespace paddle_release = paddle_fused::paddle_release;
using paddle_release::CurrentStream;
}
