#include "bridge/kernel_entry.h"

#include <deque>
#include <typeindex>
#include <unordered_map>

#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"
#include "bridge/thunks.h"
#include "observe/aclop.h"
#include "observe/kernel_path.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;
using phi::DenseTensor;
using phi::SelectedRows;
using phi::TensorArray;

std::deque<KernelEntry>& entries() {
  static auto* entries = new std::deque<KernelEntry>;
  return *entries;
}

}  // namespace

bool Signature::read(const phi::KernelArgsDef& definition) {
  static const std::unordered_map<std::type_index, ArgumentKind> input_kinds = {
      {typeid(DenseTensor), ArgumentKind::kTensor},
      {typeid(paddle::optional<DenseTensor>), ArgumentKind::kOptionalTensor},
      {typeid(std::vector<const DenseTensor*>), ArgumentKind::kTensorList},
      {typeid(paddle::optional<std::vector<const DenseTensor*>>), ArgumentKind::kOptionalTensorList},
      {typeid(std::vector<const phi::TensorBase*>), ArgumentKind::kAnyTensorList},
      {typeid(SelectedRows), ArgumentKind::kSelectedRows},
      {typeid(paddle::optional<SelectedRows>), ArgumentKind::kOptionalSelectedRows},
      {typeid(std::vector<const SelectedRows*>), ArgumentKind::kSelectedRowsList},
      {typeid(TensorArray), ArgumentKind::kTensorArray},
  };
  static const std::unordered_map<std::type_index, ArgumentKind> output_kinds = {
      {typeid(DenseTensor*), ArgumentKind::kTensor},
      {typeid(std::vector<DenseTensor*>), ArgumentKind::kTensorList},
      {typeid(SelectedRows*), ArgumentKind::kSelectedRows},
      {typeid(TensorArray*), ArgumentKind::kTensorArray},
  };
  int floats = 0;
  for (const auto& input : definition.input_defs()) {
    const auto kind = input_kinds.find(input.type_index);
    if (kind == input_kinds.end()) return false;
    inputs.push_back(kind->second);
    ++integer_slots;
  }
  for (const auto& attribute : definition.attribute_defs()) {
    attributes.push_back(attribute.type_index);
    if (is_float(attribute.type_index)) {
      ++floats;
    } else if (attribute.type_index == AttributeType::PLACE) {
      // If a single register is left, a two-slot argument is passed entirely on the stack, out of order.
      if (integer_slots == kIntegerRegisters - 1) return false;
      integer_slots += 2;
    } else {
      ++integer_slots;
    }
  }
  for (const auto& output : definition.output_defs()) {
    const auto kind = output_kinds.find(output.type_index);
    if (kind == output_kinds.end()) return false;
    outputs.push_back(kind->second);
    ++integer_slots;
  }
  return floats <= kFloatRegisters && integer_slots <= kMaxIntegerSlots;
}

KernelEntry& new_entry(const std::string& name, phi::DataType dtype) {
  KernelEntry& entry = entries().emplace_back();
  entry.name = name;
  entry.dtype = dtype;
  entry.placement = placement_of(name, dtype);
  if (entry.placement != Placement::kHost) entry.aclop = aclop_of(name);
  return entry;
}

KernelEntry& entry_at(int number) { return entries()[number]; }
int entry_count() { return static_cast<int>(entries().size()); }

}  // namespace virtual_npu
