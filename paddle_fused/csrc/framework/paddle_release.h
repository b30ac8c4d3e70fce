// What differs between the releases of Paddle that this is built for, 3.0 to 3.3. Nothing else asks for the release.
// PADDLE_VERSION_NUMBER is that of the wheel whose headers are compiled: 30202 for 3.2.2.
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

// Tensor::contiguous is const from 3.1 on.
inline paddle::Tensor contiguous(paddle::Tensor tensor) { return tensor.contiguous(); }

// Before 3.1 Paddle takes an output without elements, which has no memory, for one that was forgotten ("output is not
// initialized"). Here it gets some.
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

// PD_KERNEL of a function of an operator, whose outputs may be without elements.
#define PF_KERNEL(function) \
  PD_KERNEL(::paddle_fused::paddle_release::WithMemory<decltype(&function), &function>::call)

// The stream that a context computes on, as communicators take it: a Stream in 3.0, a stream_t from 3.1 on.
class CurrentStream {
 public:
  explicit CurrentStream(const phi::CustomContext& context) : context_(context) {}
  operator phi::stream::stream_t() const { return context_.stream(); }
  operator const phi::stream::Stream&() const { return *context_.GetStream(); }

 private:
  const phi::CustomContext& context_;
};

// Whether a dimension is split by two axes of a mesh, which placements can say from 3.1 on.
template <typename TensorDistAttr>
bool is_co_shard([[maybe_unused]] const TensorDistAttr& attr) {
#if PADDLE_VERSION_NUMBER >= 30100
  return attr.is_co_shard();
#else
  return false;
#endif
}

// From 3.1 on a program's collectives run in a context of their communicator, and read a null pointer where nobody has
// made one. In 3.0 they run in that of the device.
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

// From 3.2 on Paddle asks a plugin whether its devices compute in float16 and bfloat16; before it took that as given.
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
