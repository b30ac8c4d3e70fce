#include "virtual_npu/bridge/arguments.h"

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"

namespace virtual_npu {
namespace {

using phi::DenseTensor;
using phi::SelectedRows;
using phi::TensorArray;

template <typename Tensor>
void append_list(const std::vector<Tensor*>& list, TensorPointers* found) {
  found->insert(found->end(), list.begin(), list.end());
}

template <typename Tensor>
void append_optional(const void* argument, TensorPointers* found) {
  const auto* optional = static_cast<const paddle::optional<Tensor>*>(argument);
  if (optional->is_initialized()) found->push_back(optional->get_ptr());
}

void append(ArgumentKind kind, const void* argument, TensorPointers* found) {
  switch (kind) {
    case ArgumentKind::kTensor:
      return found->push_back(static_cast<const DenseTensor*>(argument));
    case ArgumentKind::kOptionalTensor:
      return append_optional<DenseTensor>(argument, found);
    case ArgumentKind::kTensorList:
      return append_list(*static_cast<const std::vector<const DenseTensor*>*>(argument), found);
    case ArgumentKind::kOptionalTensorList: {
      const auto* optional = static_cast<const paddle::optional<std::vector<const DenseTensor*>>*>(argument);
      if (optional->is_initialized()) append_list(**optional, found);
      return;
    }
    case ArgumentKind::kAnyTensorList:
      return append_list(*static_cast<const std::vector<const phi::TensorBase*>*>(argument), found);
    case ArgumentKind::kSelectedRows:
      return found->push_back(static_cast<const SelectedRows*>(argument));
    case ArgumentKind::kOptionalSelectedRows:
      return append_optional<SelectedRows>(argument, found);
    case ArgumentKind::kSelectedRowsList:
      return append_list(*static_cast<const std::vector<const SelectedRows*>*>(argument), found);
    case ArgumentKind::kTensorArray:
      return found->push_back(static_cast<const TensorArray*>(argument));
  }
}

TensorPointers tensors(const std::vector<ArgumentKind>& kinds, const uint64_t* slot) {
  TensorPointers found;
  for (ArgumentKind kind : kinds) append(kind, reinterpret_cast<const void*>(*slot++), &found);
  return found;
}

}  // namespace

TensorPointers TypedArguments::inputs() const { return tensors(signature_.inputs, slots_ + 1); }

TensorPointers TypedArguments::outputs() const {
  return tensors(signature_.outputs, slots_ + signature_.integer_slots - signature_.outputs.size());
}

}  // namespace virtual_npu
