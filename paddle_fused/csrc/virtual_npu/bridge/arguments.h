// The tensors among a kernel's arguments, in the two ways in which Paddle calls kernels.
#pragma once
#include <cstdint>
#include <vector>

#include "paddle/phi/core/kernel_context.h"
#include "virtual_npu/bridge/kernel_entry.h"

namespace virtual_npu {

using TensorPointers = std::vector<const phi::TensorBase*>;

// As dygraph passes them, in slots behind the device context.
class TypedArguments {
 public:
  TypedArguments(const Signature& signature, const uint64_t* slots) : signature_(signature), slots_(slots) {}

  const phi::DeviceContext* context() const { return reinterpret_cast<const phi::DeviceContext*>(slots_[0]); }
  TensorPointers inputs() const;
  TensorPointers outputs() const;

 private:
  const Signature& signature_;
  const uint64_t* slots_;
};

// As the static executor passes them.
class ContextArguments {
 public:
  explicit ContextArguments(const phi::KernelContext* context) : context_(context) {}

  const phi::DeviceContext* context() const { return context_->dev_ctx_; }
  TensorPointers inputs() const { return {context_->inputs_.begin(), context_->inputs_.end()}; }
  TensorPointers outputs() const { return {context_->outputs_.begin(), context_->outputs_.end()}; }

 private:
  const phi::KernelContext* context_;
};

}  // namespace virtual_npu
