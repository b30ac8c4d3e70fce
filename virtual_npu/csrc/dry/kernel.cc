#include "dry/kernel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/no_compute_guard.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/enforce.h"
#include "bridge/views.h"
#include "dry/known_values.h"

namespace virtual_npu {
namespace dry {
namespace {

using phi::DataType;
using phi::DenseTensor;
using Names = std::unordered_set<std::string>;

// Kernels that read only the shapes of their inputs, and return these or uninitialized memory.
const Names& only_allocate() {
  static const Names names = {"empty", "empty_like"};
  return names;
}
const Names& read_shapes_only() {
  static const Names names = {"is_empty", "numel", "shape", "shape64"};
  return names;
}

// Kernels of this plugin that call other kernels, or both communicate and compute.
const Names& call_others() {
  static const Names names = {"c_concat", "c_softmax_with_cross_entropy", "fused_linear_param_grad_add"};
  return names;
}

// Bools on which a training loop branches. All numbers are assumed finite, and a single number, such as a loss or the
// sum of label weights, is assumed to differ from the number it is compared with.
const std::unordered_map<std::string, bool>& assumed_answers() {
  static const std::unordered_map<std::string, bool> answers = {
      {"check_finite_and_unscale", false}, {"equal", false}, {"isfinite", true}, {"isinf", false}, {"isnan", false},
      {"not_equal", true}};
  return answers;
}

const DenseTensor* dense(const phi::TensorBase* tensor) {
  return DenseTensor::classof(tensor) ? static_cast<const DenseTensor*>(tensor) : nullptr;
}

// The outputs as dense tensors, without outputs that are not needed and outputs without an inferred shape, which a
// kernel saves for its gradient (einsum's).
std::vector<DenseTensor*> wanted(const KernelEntry& entry, const TensorPointers& outputs) {
  std::vector<DenseTensor*> found;
  for (const phi::TensorBase* output : outputs) {
    if (!output) continue;
    if (!dense(output))
      PADDLE_THROW(common::errors::Unimplemented(
          "The operator '%s' returns rows or an array of tensors, whose sizes depend on values. Dry mode "
          "(VIRTUAL_NPU_DRY=1) does not compute values; use dense tensors (sparse=False).",
          entry.name));
    if (dense(output)->dims().size() >= 0) found.push_back(const_cast<DenseTensor*>(dense(output)));
  }
  return found;
}

bool has_size(const DenseTensor& tensor) {
  for (int i = 0; i < tensor.dims().size(); ++i)
    if (tensor.dims()[i] < 0) return false;
  return true;
}

DataType dtype_of(const KernelEntry& entry, const DenseTensor& output) {
  if (output.dtype() != DataType::UNDEFINED) return output.dtype();
  return entry.dtype == DataType::ALL_DTYPE ? DataType::FLOAT32 : entry.dtype;
}

bool is_small(const KernelEntry& entry, const DenseTensor& output) {
  const DataType dtype = dtype_of(entry, output);
  return !has_size(output) || output.numel() * phi::SizeOf(dtype) <= small(dtype);
}

bool computes_from_known(const KernelEntry& entry, const TensorPointers& inputs,
                         const std::vector<DenseTensor*>& outputs) {
  const auto known = [](const phi::TensorBase* input) { return !input || (dense(input) && is_known(*dense(input))); };
  const auto small = [&](const DenseTensor* output) { return is_small(entry, *output); };
  return std::all_of(inputs.begin(), inputs.end(), known) && std::all_of(outputs.begin(), outputs.end(), small);
}

Holder float32_copy(const phi::DeviceContext& context, const DenseTensor& tensor) {
  return Holder(const_cast<phi::Allocator&>(context.GetAllocator()).Allocate(tensor.numel() * sizeof(float)));
}

void allocate(const KernelEntry& entry, const phi::DeviceContext& context, DenseTensor* output) {
  // Host memory passed in to be written in place: powers of beta.
  if (output->initialized() && output->place().GetType() == phi::AllocationType::CPU) return;
  context.Alloc(output, dtype_of(entry, *output));
}

void allocate_outputs(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& inputs,
                      const std::vector<DenseTensor*>& outputs) {
  for (const DenseTensor* output : outputs)
    if (!has_size(*output))
      PADDLE_THROW(common::errors::Unimplemented(
          "The output size of the operator '%s' depends on values that it reads. Dry mode (VIRTUAL_NPU_DRY=1) does not "
          "compute values; use a form of the model with fixed shapes, or unset VIRTUAL_NPU_DRY.",
          entry.name));
  std::vector<Holder> copies;  // of promoted tensors, for the duration of the call
  std::vector<const phi::TensorBase*> copied;
  for (const phi::TensorBase* input : inputs) {
    if (!entry.promotes() || !input || !dense(input) || dense(input)->dtype() != entry.promoted) continue;
    if (std::count(copied.begin(), copied.end(), input) || !dense(input)->has_allocation()) continue;
    copied.push_back(input);
    copies.push_back(float32_copy(context, *dense(input)));
  }
  const auto is_promoted = [&](const DenseTensor* output) {
    return entry.promotes() && dtype_of(entry, *output) == entry.promoted;
  };
  for (DenseTensor* output : outputs) {
    if (!is_promoted(output)) allocate(entry, context, output);
    else if (!std::count(copied.begin(), copied.end(), output)) copies.push_back(float32_copy(context, *output));
  }
  for (DenseTensor* output : outputs)
    if (is_promoted(output)) allocate(entry, context, output);
}

bool shares_memory(const DenseTensor& output, const TensorPointers& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const phi::TensorBase* input) {
    return input && dense(input) && dense(input)->Holder() == output.Holder();
  });
}

bool is_float(DataType dtype) {
  return dtype == DataType::FLOAT32 || dtype == DataType::BFLOAT16 || dtype == DataType::FLOAT16;
}

// Sets the assumed results of checks in a training loop.
bool assume(const KernelEntry& entry, const std::vector<DenseTensor*>& outputs) {
  const auto answer = assumed_answers().find(entry.name);
  if (answer == assumed_answers().end()) return false;
  const bool compares = entry.name == "equal" || entry.name == "not_equal";
  if (compares && (!is_float(entry.dtype) || outputs.front()->numel() != 1)) return false;
  for (DenseTensor* output : outputs) {
    if (output->dtype() != DataType::BOOL || output->numel() > int64_t(kSmallIntegers)) {
      set_unknown(*output, entry.name);
      continue;
    }
    std::memset(output->data(), answer->second, output->numel());
    set_known(*output);
  }
  return true;
}

}  // namespace

void call(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& inputs,
          const TensorPointers& outputs, const std::function<void()>& compute) {
  const bool composes = call_others().count(entry.name) > 0;
  if (entry.queues && !composes) return compute();
  const std::vector<DenseTensor*> results = wanted(entry, outputs);
  if (entry.view) {
    compute();
    for (const DenseTensor* output : results)
      if (!shares_memory(*output, inputs)) set_unknown(*output, entry.name);
    return;
  }
  const bool allocates = only_allocate().count(entry.name) > 0;
  if (!allocates && !composes && (read_shapes_only().count(entry.name) || computes_from_known(entry, inputs, results))) {
    compute();
    for (const DenseTensor* output : results) set_known(*output);
    return;
  }
  if (allocates || composes) {
    const paddle_fused::kernels::NoComputeGuard no_compute;
    compute();
  } else {
    allocate_outputs(entry, context, inputs, results);
    if (assume(entry, results)) return;
  }
  for (const DenseTensor* output : results) set_unknown(*output, entry.name);
}

}  // namespace dry
}  // namespace virtual_npu
