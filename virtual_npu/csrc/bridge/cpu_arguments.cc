#include "bridge/cpu_arguments.h"

#include <cstring>

#include "kernels/elementwise/cast.h"
#include "element_type.h"

namespace virtual_npu {
namespace {

using phi::DataType;
using phi::DenseTensor;
using phi::SelectedRows;
using phi::TensorArray;
using phi::TensorBase;

namespace host = paddle_fused::kernels;

Holder allocate_from(const phi::Allocator& allocator, size_t size) {
  return Holder(const_cast<phi::Allocator&>(allocator).Allocate(size));
}

char* address_of(const DenseTensor& tensor) {
  return static_cast<char*>(tensor.holder_->ptr()) + tensor.meta_.offset;
}

bool has_memory(const DenseTensor& tensor) { return tensor.holder_ && tensor.holder_->ptr(); }

}  // namespace

Holder CpuArguments::view_of(const Holder& holder) {
  if (!holder || !on_npu(holder)) return holder;
  for (const auto& view : views_)
    if (view.first == holder.get()) return view.second;
  return views_.emplace_back(holder.get(), std::make_shared<CpuView>(holder)).second;
}

// Makes `cpu_tensor` share the tensor's memory. Returns true if it is a cast copy instead.
bool CpuArguments::fill(DenseTensor* cpu_tensor, const DenseTensor& tensor, bool is_output) {
  const bool cast = entry_.promotes() && tensor.dtype() == entry_.promoted;
  cpu_tensor->meta_ = tensor.meta_;
  if (cast) {
    cpu_tensor->meta_.dtype = DataType::FLOAT32;
    cpu_tensor->meta_.offset = 0;
  }
  const bool dropped = !is_output && tensor.holder_ && tensor.holder_->size() == 0 && tensor.numel() > 0;
  if (dropped) {
    const size_t size = tensor.numel() * phi::SizeOf(cpu_tensor->meta_.dtype) + cpu_tensor->meta_.offset;
    cpu_tensor->holder_ = allocate_from(cpu_context_->GetHostAllocator(), size);
    std::memset(cpu_tensor->holder_->ptr(), 0, size);
  } else if (!cast) {
    cpu_tensor->holder_ = view_of(tensor.holder_);
  } else if (!is_output && tensor.holder_) {
    const int64_t count = tensor.numel();  // may be 0: kernels also request the memory of empty tensors
    cpu_tensor->holder_ = allocate_from(cpu_context_->GetAllocator(), count * sizeof(float));
    if (count > 0)
      host::cast(element_type(entry_.promoted), address_of(tensor), host::ElementType::kFloat32, address_of(*cpu_tensor),
                 count);
  }
  return cast;
}

DenseTensor* CpuArguments::cpu_tensor(const DenseTensor* tensor, bool is_output) {
  if (!tensor) return nullptr;
  for (Pair& pair : pairs_) {
    if (pair.tensor != tensor) continue;
    pair.output |= is_output;
    return pair.cpu_tensor.get();
  }
  auto made = std::make_unique<DenseTensor>();
  const bool cast = fill(made.get(), *tensor, is_output);
  pairs_.push_back({tensor, std::move(made), cast, is_output});
  return pairs_.back().cpu_tensor.get();
}

SelectedRows* CpuArguments::cpu_tensor(const SelectedRows* rows, bool is_output) {
  if (!rows) return nullptr;
  SelectedRows* made = keep(SelectedRows(rows->rows(), rows->height()));
  fill(made->mutable_value(), rows->value(), false);
  if (is_output) rows_outputs_.emplace_back(const_cast<SelectedRows*>(rows), made);
  return made;
}

TensorArray* CpuArguments::cpu_tensor(const TensorArray* array, bool is_output) {
  if (!array) return nullptr;
  TensorArray* made = keep(TensorArray());
  for (size_t i = 0; i < array->size(); ++i) made->push_back(*cpu_tensor(&array->at(i), false));
  if (is_output) array_outputs_.emplace_back(const_cast<TensorArray*>(array), made);
  return made;
}

const TensorBase* CpuArguments::input(const TensorBase* tensor) {
  if (!tensor) return nullptr;
  if (DenseTensor::classof(tensor)) return cpu_tensor(static_cast<const DenseTensor*>(tensor), false);
  if (SelectedRows::classof(tensor)) return cpu_tensor(static_cast<const SelectedRows*>(tensor), false);
  if (TensorArray::classof(tensor)) return cpu_tensor(static_cast<const TensorArray*>(tensor), false);
  return tensor;
}

TensorBase* CpuArguments::output(TensorBase* tensor) {
  if (!tensor) return nullptr;
  if (DenseTensor::classof(tensor)) return cpu_tensor(static_cast<DenseTensor*>(tensor), true);
  if (SelectedRows::classof(tensor)) return cpu_tensor(static_cast<SelectedRows*>(tensor), true);
  if (TensorArray::classof(tensor)) return cpu_tensor(static_cast<TensorArray*>(tensor), true);
  return tensor;
}

const void* CpuArguments::input(ArgumentKind kind, const void* argument) {
  switch (kind) {
    case ArgumentKind::kTensor:
      return cpu_tensor(static_cast<const DenseTensor*>(argument), false);
    case ArgumentKind::kOptionalTensor: {
      const auto* optional = static_cast<const paddle::optional<DenseTensor>*>(argument);
      if (!optional->is_initialized()) return argument;
      return keep(paddle::optional<DenseTensor>(*cpu_tensor(optional->get_ptr(), false)));
    }
    case ArgumentKind::kTensorList: {
      auto* list = keep(std::vector<const DenseTensor*>());
      for (const auto* tensor : *static_cast<const std::vector<const DenseTensor*>*>(argument))
        list->push_back(cpu_tensor(tensor, false));
      return list;
    }
    case ArgumentKind::kOptionalTensorList: {
      using List = std::vector<const DenseTensor*>;
      const auto* optional = static_cast<const paddle::optional<List>*>(argument);
      if (!optional->is_initialized()) return argument;
      List list;
      for (const auto* tensor : **optional) list.push_back(cpu_tensor(tensor, false));
      return keep(paddle::optional<List>(std::move(list)));
    }
    case ArgumentKind::kAnyTensorList: {
      auto* list = keep(std::vector<const TensorBase*>());
      for (const auto* tensor : *static_cast<const std::vector<const TensorBase*>*>(argument))
        list->push_back(input(tensor));
      return list;
    }
    case ArgumentKind::kSelectedRows:
      return cpu_tensor(static_cast<const SelectedRows*>(argument), false);
    case ArgumentKind::kOptionalSelectedRows: {
      const auto* optional = static_cast<const paddle::optional<SelectedRows>*>(argument);
      if (!optional->is_initialized()) return argument;
      return keep(paddle::optional<SelectedRows>(*cpu_tensor(optional->get_ptr(), false)));
    }
    case ArgumentKind::kSelectedRowsList: {
      auto* list = keep(std::vector<const SelectedRows*>());
      for (const auto* rows : *static_cast<const std::vector<const SelectedRows*>*>(argument))
        list->push_back(cpu_tensor(rows, false));
      return list;
    }
    case ArgumentKind::kTensorArray:
      return cpu_tensor(static_cast<const TensorArray*>(argument), false);
  }
  return argument;
}

void* CpuArguments::output(ArgumentKind kind, void* argument) {
  if (kind == ArgumentKind::kTensor) return cpu_tensor(static_cast<DenseTensor*>(argument), true);
  if (kind == ArgumentKind::kTensorList) {
    auto* list = keep(std::vector<DenseTensor*>());
    for (auto* tensor : *static_cast<std::vector<DenseTensor*>*>(argument)) list->push_back(cpu_tensor(tensor, true));
    return list;
  }
  return output(static_cast<TensorBase*>(argument));
}

void CpuArguments::give_back(DenseTensor* tensor, DenseTensor& cpu_tensor, bool cast) {
  phi::DenseTensorMeta meta = cpu_tensor.meta_;
  if (cast && cpu_tensor.meta_.dtype == DataType::FLOAT32) {
    meta.dtype = entry_.promoted;
    meta.offset = tensor->meta_.offset;
    if (cpu_tensor.holder_) {
      const int64_t count = cpu_tensor.numel();
      const size_t size = count * phi::SizeOf(entry_.promoted);
      // An output with memory of the right size is written in place.
      if (!has_memory(*tensor) || tensor->holder_->size() < size + meta.offset) {
        tensor->holder_ = allocate_from(context_.GetAllocator(), size);
        meta.offset = 0;
      }
      tensor->meta_ = meta;
      if (count > 0)
        host::cast(host::ElementType::kFloat32, address_of(cpu_tensor), element_type(entry_.promoted), address_of(*tensor),
                   count);
    }
    tensor->meta_ = meta;
    return;
  }
  tensor->meta_ = meta;
  if (!cpu_tensor.holder_) {
    tensor->holder_ = nullptr;
  } else if (tensor->holder_ != cpu_tensor.holder_) {
    tensor->holder_ = as_npu(cpu_tensor.holder_, context_.GetPlace());
  }
}

void CpuArguments::finish() {
  for (Pair& pair : pairs_)
    if (pair.output) give_back(const_cast<DenseTensor*>(pair.tensor), *pair.cpu_tensor, pair.cast);
  for (auto& [rows, made] : rows_outputs_) {
    const bool cast = entry_.promotes() && rows->value().dtype() == entry_.promoted;
    rows->set_rows(made->rows());
    rows->set_height(made->height());
    give_back(rows->mutable_value(), *made->mutable_value(), cast);
  }
  for (auto& [array, made] : array_outputs_) {
    array->clear();
    for (size_t i = 0; i < made->size(); ++i) {
      DenseTensor element;
      give_back(&element, made->at(i), false);
      array->push_back(element);
    }
  }
}

}  // namespace virtual_npu
