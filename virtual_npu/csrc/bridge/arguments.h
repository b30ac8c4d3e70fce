// The tensors among a kernel's arguments, in both of Paddle's calling forms.
#pragma once
#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"
#include "bridge/kernel_entry.h"

namespace virtual_npu {

using TensorPointers = std::vector<const phi::TensorBase*>;

// Calls `visit` with each tensor of an argument.
template <typename Visit>
void each_tensor(ArgumentKind kind, const void* argument, const Visit& visit);

// The form of dygraph: slots after the device context.
class TypedArguments {
 public:
  TypedArguments(const Signature& signature, const uint64_t* slots) : signature_(signature), slots_(slots) {}

  const phi::DeviceContext* context() const { return reinterpret_cast<const phi::DeviceContext*>(slots_[0]); }
  // An attribute that is passed by reference, after attributes that are passed by reference as well.
  const void* attribute(int number) const {
    return reinterpret_cast<const void*>(slots_[1 + signature_.inputs.size() + number]);
  }
  template <typename Visit>
  void each_input(const Visit& visit) const {
    const uint64_t* slot = slots_ + 1;
    for (ArgumentKind kind : signature_.inputs) each_tensor(kind, reinterpret_cast<const void*>(*slot++), visit);
  }
  template <typename Visit>
  void each_output(const Visit& visit) const {
    const uint64_t* slot = slots_ + signature_.integer_slots - signature_.outputs.size();
    for (ArgumentKind kind : signature_.outputs) each_tensor(kind, reinterpret_cast<const void*>(*slot++), visit);
  }

 private:
  const Signature& signature_;
  const uint64_t* slots_;
};

// The form of the static executor.
class ContextArguments {
 public:
  explicit ContextArguments(const phi::KernelContext* context) : context_(context) {}

  const phi::DeviceContext* context() const { return context_->dev_ctx_; }
  template <typename Visit>
  void each_input(const Visit& visit) const {
    for (const phi::TensorBase* tensor : context_->inputs_) visit(tensor);
  }
  template <typename Visit>
  void each_output(const Visit& visit) const {
    for (const phi::TensorBase* tensor : context_->outputs_) visit(tensor);
  }

 private:
  const phi::KernelContext* context_;
};

template <typename Visit>
void each_tensor(ArgumentKind kind, const void* argument, const Visit& visit) {
  using phi::DenseTensor;
  using phi::SelectedRows;
  const auto each = [&](const auto& list) {
    for (const phi::TensorBase* tensor : list) visit(tensor);
  };
  const auto one = [&](const auto& optional) {
    if (optional.is_initialized()) visit(optional.get_ptr());
  };
  switch (kind) {
    case ArgumentKind::kTensor:
      return visit(static_cast<const DenseTensor*>(argument));
    case ArgumentKind::kOptionalTensor:
      return one(*static_cast<const paddle::optional<DenseTensor>*>(argument));
    case ArgumentKind::kTensorList:
      return each(*static_cast<const std::vector<const DenseTensor*>*>(argument));
    case ArgumentKind::kOptionalTensorList: {
      const auto& optional = *static_cast<const paddle::optional<std::vector<const DenseTensor*>>*>(argument);
      if (optional.is_initialized()) each(*optional);
      return;
    }
    case ArgumentKind::kAnyTensorList:
      return each(*static_cast<const std::vector<const phi::TensorBase*>*>(argument));
    case ArgumentKind::kSelectedRows:
      return visit(static_cast<const SelectedRows*>(argument));
    case ArgumentKind::kOptionalSelectedRows:
      return one(*static_cast<const paddle::optional<SelectedRows>*>(argument));
    case ArgumentKind::kSelectedRowsList:
      return each(*static_cast<const std::vector<const SelectedRows*>*>(argument));
    case ArgumentKind::kTensorArray:
      return visit(static_cast<const phi::TensorArray*>(argument));
  }
}

template <typename Arguments>
TensorPointers inputs_of(const Arguments& arguments) {
  TensorPointers found;
  arguments.each_input([&](const phi::TensorBase* tensor) { found.push_back(tensor); });
  return found;
}

template <typename Arguments>
TensorPointers outputs_of(const Arguments& arguments) {
  TensorPointers found;
  arguments.each_output([&](const phi::TensorBase* tensor) { found.push_back(tensor); });
  return found;
}

}  // namespace virtual_npu
