// Calls of operators that Paddle dispatches without the kernel table.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels/no_compute_guard.h"
#include "checks/launch.h"
#include "observe/launch.h"

namespace paddle {
class Tensor;
}

namespace virtual_npu {

// The launch of one of the plugin's custom operators, created after the operator has accepted its arguments.
// Observers receive `inputs`, and the tensors passed through `returns` as outputs. In dry mode, the host kernels do
// not compute during its lifetime.
class OperatorCall {
 public:
  OperatorCall(const std::string& name, phi::DataType dtype, std::initializer_list<const paddle::Tensor*> inputs);

  std::vector<paddle::Tensor> returns(std::vector<paddle::Tensor> outputs);

 private:
  Launch launch_;
  std::optional<checks::OperatorCheck> check_;
  std::optional<paddle_fused::kernels::NoComputeGuard> no_compute_;
};

}  // namespace virtual_npu
