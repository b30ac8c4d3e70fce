#include "observe/operator_call.h"

#include <exception>
#include <list>

#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/core/enforce.h"
#include "observe/refusal.h"
#include "runtime/config.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace virtual_npu {
namespace {

// An operator of another library that is computing.
struct HostOperator {
  Launch launch;
  std::optional<paddle_fused::kernels::NoComputeGuard> no_compute;

  std::optional<checks::OperatorCheck> check;

  HostOperator(const char* name, phi::DataType dtype, const checks::Tensors& inputs)
      : launch(name, dtype, Placement::kHost, current_device()) {
    if (config().dry) no_compute.emplace();
    finish_deferred_work(current_device());
    if (config().checks) check.emplace(name, inputs);
  }
};
thread_local std::list<HostOperator> host_operators;  // the innermost is the last

}  // namespace

OperatorCall::OperatorCall(const std::string& name, phi::DataType dtype,
                           std::initializer_list<const paddle::Tensor*> inputs)
    : launch_(name, dtype, Placement::kNpu, current_device()) {
  record_operator(name, dtype, Placement::kNpu);
  if (refuses_call(name, dtype) || config().dry) no_compute_.emplace();
  for (const paddle::Tensor* tensor : inputs)
    if (tensor->defined()) launch_.add_input(tensor->dtype(), tensor->dims());
  finish_deferred_work(current_device());
  if (config().checks) {
    checks::Tensors tensors;
    for (const paddle::Tensor* tensor : inputs) tensors.push_back(tensor->impl().get());
    check_.emplace(name, std::move(tensors));
  }
  launch_.begin();
}

std::vector<paddle::Tensor> OperatorCall::returns(std::vector<paddle::Tensor> outputs) {
  for (const paddle::Tensor& tensor : outputs)
    if (tensor.defined()) launch_.add_output(tensor.dtype(), tensor.dims());
  if (check_) {
    checks::Tensors tensors;
    for (const paddle::Tensor& tensor : outputs) tensors.push_back(tensor.impl().get());
    check_->finish(tensors);
  }
  return outputs;
}

}  // namespace virtual_npu

// A host operator of another library computes on npu tensors between these two calls. dtype is a phi::DataType;
// `inputs` are `count` of its tensors.
extern "C" void virtual_npu_begin_host_operator(const char* name, int dtype, const phi::TensorBase* const* inputs,
                                                int count) {
  using namespace virtual_npu;
  if (config().strict)
    PADDLE_THROW(common::errors::Unimplemented(
        "%s is an operator of the host: a card does not have it, and VIRTUAL_NPU_STRICT=1 refuses it. Move the tensors "
        "to the CPU, or unset VIRTUAL_NPU_STRICT.",
        name));
  record_operator(name, static_cast<phi::DataType>(dtype), Placement::kHost);
  Launch& launch =
      host_operators.emplace_back(name, static_cast<phi::DataType>(dtype), checks::Tensors(inputs, inputs + count)).launch;
  launch.outputs_are_its_allocations();
  for (int i = 0; i < count; ++i) launch.add_input(inputs[i]);
  launch.begin();
}
extern "C" void virtual_npu_end_host_operator() {
  using namespace virtual_npu;
  // Not after an exception of the operator. Its outputs are not known here.
  if (host_operators.back().check && std::uncaught_exceptions() == 0) host_operators.back().check->finish({});
  host_operators.pop_back();
}
