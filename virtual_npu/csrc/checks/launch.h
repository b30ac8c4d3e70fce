// The checks of one launch: a kernel of the bridge or the plugin, or an operator. See VIRTUAL_NPU_CHECK in
// docs/device_checks.md.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "checks/allocations.h"

namespace virtual_npu {
namespace checks {

using Tensors = std::vector<const phi::TensorBase*>;

// Bytes of a tensor, counted from its first element.
struct Part {
  size_t begin, end;
};

// A kernel that can be computed again: the init check replaces unwritten elements of its inputs by several values, and
// raises a finding if the results differ in more than copies of these elements. `stream` is the stream of its context,
// `part` the part of the first output that an in-place kernel uses.
void run_kernel(const std::string& name, const void* stream, const Tensors& inputs, const Tensors& outputs,
                const std::optional<Part>& part, const std::function<void()>& compute);

// A collective, a copy or other work on device memory that is launched on `stream`, or done by the host for nullptr.
void use_memory(const std::string& name, const void* stream, const std::vector<Range>& ranges);

// An operator that computes once, between its construction and finish().
class OperatorCheck {
 public:
  OperatorCheck(const std::string& name, Tensors inputs);
  ~OperatorCheck();
  OperatorCheck(const OperatorCheck&) = delete;
  void finish(const Tensors& outputs);

 private:
  const bool nested_;
  const Tensors inputs_;
  Work work_;
  const phi::DenseTensor* unwritten_ = nullptr;
  bool has_nan_ = false;
};

}  // namespace checks
}  // namespace virtual_npu
