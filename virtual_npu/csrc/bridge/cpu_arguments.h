// During a kernel call, every npu tensor argument has a CPU tensor that shares its memory.
//
// Kernels depend on these properties:
// - A dense tensor has exactly one CPU tensor, and an allocation exactly one view, so aliasing remains visible.
// - An input whose buffer was freed by autograd (only on custom devices, never on the CPU) reads as zeros.
// - For a promoted kernel, the CPU tensors of 16-bit tensors are float32 copies, which are cast back afterwards.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"
#include "bridge/kernel_entry.h"
#include "bridge/views.h"

namespace virtual_npu {

class CpuArguments {
 public:
  CpuArguments(const KernelEntry& entry, const phi::DeviceContext& context)
      : entry_(entry), context_(context), cpu_context_(cpu_context_of(context)) {
    pairs_.reserve(8);  // most kernels have fewer tensors
    views_.reserve(8);
  }

  phi::CPUContext* cpu_context() const { return cpu_context_; }

  // The replacement for `argument`, an object of the given kind.
  const void* input(ArgumentKind kind, const void* argument);
  void* output(ArgumentKind kind, void* argument);

  // The same for the static executor, which passes every tensor as a TensorBase.
  const phi::TensorBase* input(const phi::TensorBase* tensor);
  phi::TensorBase* output(phi::TensorBase* tensor);

  // Transfers the outputs' shapes, types and memory back to the npu tensors.
  void finish();

 private:
  struct Pair {
    const phi::DenseTensor* tensor;
    std::unique_ptr<phi::DenseTensor> cpu_tensor;
    bool cast = false;
    bool output = false;
  };

  phi::DenseTensor* cpu_tensor(const phi::DenseTensor* tensor, bool is_output);
  phi::SelectedRows* cpu_tensor(const phi::SelectedRows* rows, bool is_output);
  phi::TensorArray* cpu_tensor(const phi::TensorArray* array, bool is_output);
  bool fill(phi::DenseTensor* cpu_tensor, const phi::DenseTensor& tensor, bool is_output);
  void give_back(phi::DenseTensor* tensor, phi::DenseTensor& cpu_tensor, bool cast);
  Holder view_of(const Holder& holder);

  template <typename T>
  T* keep(T object) {
    auto kept = std::make_shared<T>(std::move(object));
    kept_.push_back(kept);
    return kept.get();
  }

  const KernelEntry& entry_;
  const phi::DeviceContext& context_;
  phi::CPUContext* cpu_context_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<const phi::Allocation*, Holder>> views_;
  std::vector<std::shared_ptr<void>> kept_;  // lists, optionals and other wrappers
  std::vector<std::pair<phi::SelectedRows*, phi::SelectedRows*>> rows_outputs_;
  std::vector<std::pair<phi::TensorArray*, phi::TensorArray*>> array_outputs_;
};

}  // namespace virtual_npu
