// Kernel calls that outlive their launch, for VIRTUAL_NPU_DEFER.
#pragma once
#include <memory>

#include "bridge/kernel_entry.h"
#include "bridge/thunks.h"

namespace virtual_npu {

// A call in dygraph's form that owns its arguments: tensors that share the caller's memory, and copies of attributes.
class DeferredCall {
 public:
  // Allocates the call's outputs. Returns nullptr if the kernel must compute at its launch: if the sizes of its outputs
  // depend on values, it uses host memory, returns views, rows or arrays of tensors, or draws random numbers.
  static std::shared_ptr<DeferredCall> of(const KernelEntry& entry, const uint64_t* slots, const double* floats);

  const uint64_t* slots() const { return slots_; }
  const double* floats() const { return floats_; }
  // After the computation: copies results that the kernel put into other memory than the caller's tensors have.
  void deliver();

 private:
  struct Output {
    std::shared_ptr<phi::DenseTensor> own;
    phi::DenseTensor callers;
  };

  const void* own_tensor(const phi::TensorBase* tensor);
  const void* own_input(ArgumentKind kind, const void* argument);
  const void* own_attribute(phi::AttributeType type, const void* argument);
  template <typename T>
  const T* keep(T object) {
    auto kept = std::make_shared<T>(std::move(object));
    kept_.push_back(kept);
    return kept.get();
  }

  uint64_t slots_[Signature::kMaxIntegerSlots] = {};
  double floats_[kFloatRegisters] = {};
  std::vector<std::pair<const phi::TensorBase*, std::shared_ptr<phi::DenseTensor>>> tensors_;
  std::vector<Output> outputs_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace virtual_npu
