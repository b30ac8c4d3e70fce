#include "bridge/deferred_call.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "bridge/arguments.h"
#include "bridge/random_kernels.h"
#include "bridge/views.h"
#include "observe/host_fallback.h"
#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/device_context.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;
using phi::DenseTensor;

// Rows and arrays of tensors are not deferred.
bool can_own(ArgumentKind kind) {
  return kind == ArgumentKind::kTensor || kind == ArgumentKind::kOptionalTensor || kind == ArgumentKind::kTensorList ||
         kind == ArgumentKind::kOptionalTensorList || kind == ArgumentKind::kAnyTensorList;
}

bool can_defer_input(const phi::TensorBase* input) {
  if (!input) return true;
  const DenseTensor* tensor = dense(input);
  return tensor && (tensor->Holder() ? on_npu(tensor->Holder()) : tensor->numel() <= 0);
}

bool can_defer_output(const phi::TensorBase* output) {
  if (!output) return true;
  const DenseTensor* tensor = dense(output);
  if (!tensor || tensor->dims().size() < 0 || tensor->dtype() == phi::DataType::UNDEFINED) return false;
  if (tensor->Holder() && !on_npu(tensor->Holder())) return false;
  for (int i = 0; i < tensor->dims().size(); ++i)
    if (tensor->dims()[i] < 0) return false;
  return tensor->meta().is_contiguous();
}

bool can_defer(const KernelEntry& entry, const TensorPointers& inputs, const TensorPointers& outputs) {
  if (entry.queues || entry.view || entry.without_tensors || draws_random_numbers(entry.name) || outputs.empty())
    return false;
  const auto& kinds = entry.signature.inputs;
  const auto& attributes = entry.signature.attributes;
  return std::all_of(kinds.begin(), kinds.end(), can_own) &&
         std::count(attributes.begin(), attributes.end(), AttributeType::UNDEFINED) == 0 &&
         std::all_of(inputs.begin(), inputs.end(), can_defer_input) &&
         std::all_of(outputs.begin(), outputs.end(), can_defer_output);
}

}  // namespace

const void* DeferredCall::own_tensor(const phi::TensorBase* tensor) {
  if (!tensor) return nullptr;
  for (const auto& [callers, own] : tensors_)
    if (callers == tensor) return own.get();
  return tensors_.emplace_back(tensor, std::make_shared<DenseTensor>(*dense(tensor))).second.get();
}

const void* DeferredCall::own_input(ArgumentKind kind, const void* argument) {
  using List = std::vector<const DenseTensor*>;
  const auto own_list = [&](const auto& list) {
    List own;
    for (const phi::TensorBase* tensor : list) own.push_back(static_cast<const DenseTensor*>(own_tensor(tensor)));
    return own;
  };
  switch (kind) {
    case ArgumentKind::kTensor:
      return own_tensor(static_cast<const DenseTensor*>(argument));
    case ArgumentKind::kOptionalTensor: {
      const auto& optional = *static_cast<const paddle::optional<DenseTensor>*>(argument);
      if (!optional.is_initialized()) return keep(paddle::optional<DenseTensor>());
      return keep(paddle::optional<DenseTensor>(*static_cast<const DenseTensor*>(own_tensor(optional.get_ptr()))));
    }
    case ArgumentKind::kTensorList:
      return keep(own_list(*static_cast<const List*>(argument)));
    case ArgumentKind::kOptionalTensorList: {
      const auto& optional = *static_cast<const paddle::optional<List>*>(argument);
      return optional.is_initialized() ? keep(paddle::optional<List>(own_list(*optional)))
                                       : keep(paddle::optional<List>());
    }
    default: {  // kAnyTensorList; see can_own
      std::vector<const phi::TensorBase*> own;
      for (const phi::TensorBase* tensor : *static_cast<const std::vector<const phi::TensorBase*>*>(argument))
        own.push_back(static_cast<const DenseTensor*>(own_tensor(tensor)));
      return keep(std::move(own));
    }
  }
}

const void* DeferredCall::own_attribute(AttributeType type, const void* argument) {
  const auto own = [&](auto kind) -> const void* {
    using T = decltype(kind);
    return keep(T(*static_cast<const T*>(argument)));
  };
  switch (type) {
    case AttributeType::STRING:
      return own(std::string());
    case AttributeType::BOOLS:
      return own(std::vector<bool>());
    case AttributeType::INT32S:
      return own(std::vector<int>());
    case AttributeType::INT64S:
      return own(std::vector<int64_t>());
    case AttributeType::FLOAT32S:
      return own(std::vector<float>());
    case AttributeType::FLOAT64S:
      return own(std::vector<double>());
    case AttributeType::STRINGS:
      return own(std::vector<std::string>());
    case AttributeType::SCALAR:
      return own(phi::Scalar());
    case AttributeType::SCALARS:
      return own(std::vector<phi::Scalar>());
    case AttributeType::INT_ARRAY:
      return own(phi::IntArray());
    default:
      return argument;  // passed by value
  }
}

std::shared_ptr<DeferredCall> DeferredCall::of(const KernelEntry& entry, const uint64_t* slots, const double* floats) {
  const TypedArguments arguments(entry.signature, slots);
  const TensorPointers outputs = outputs_of(arguments);
  if (!can_defer(entry, inputs_of(arguments), outputs)) return nullptr;
  for (const phi::TensorBase* output : outputs)
    if (output) arguments.context()->Alloc(const_cast<phi::TensorBase*>(output), output->dtype());
  auto call = std::make_shared<DeferredCall>();
  std::copy(floats, floats + kFloatRegisters, call->floats_);
  const auto slot_of = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  uint64_t* slot = call->slots_;
  *slot++ = *slots++;
  for (ArgumentKind kind : entry.signature.inputs)
    *slot++ = slot_of(call->own_input(kind, reinterpret_cast<const void*>(*slots++)));
  for (AttributeType type : entry.signature.attributes) {
    if (is_float(type)) continue;
    *slot++ = slot_of(call->own_attribute(type, reinterpret_cast<const void*>(*slots++)));
    if (type == AttributeType::PLACE) *slot++ = *slots++;
  }
  for (ArgumentKind kind : entry.signature.outputs) {
    const void* argument = reinterpret_cast<const void*>(*slots++);
    if (kind == ArgumentKind::kTensor) {
      *slot++ = slot_of(call->own_tensor(static_cast<const DenseTensor*>(argument)));
      continue;
    }
    std::vector<DenseTensor*> own;
    for (const DenseTensor* tensor : *static_cast<const std::vector<DenseTensor*>*>(argument))
      own.push_back(static_cast<DenseTensor*>(const_cast<void*>(call->own_tensor(tensor))));
    *slot++ = slot_of(call->keep(std::move(own)));
  }
  for (const auto& [callers, own] : call->tensors_)
    if (std::count(outputs.begin(), outputs.end(), callers)) call->outputs_.push_back({own, *own});
  return call;
}

void DeferredCall::deliver() {
  for (Output& output : outputs_) {
    const DenseTensor& result = *output.own;
    if (!result.Holder() || result.Holder() == output.callers.Holder() || result.numel() <= 0) continue;
    std::memcpy(output.callers.data(), result.data(), result.numel() * phi::SizeOf(result.dtype()));
  }
}

}  // namespace virtual_npu
