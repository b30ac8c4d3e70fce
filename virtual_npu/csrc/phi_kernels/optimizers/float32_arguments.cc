#include "phi_kernels/optimizers/float32_arguments.h"

#include "kernels/elementwise/cast.h"
#include "element_type.h"
#include "phi_kernels/in_place.h"

namespace virtual_npu {

using phi::DenseTensor;

void cast_tensor(const phi::CustomContext& context, const DenseTensor& source, phi::DataType type,
                 DenseTensor* target) {
  target->Resize(source.dims());
  void* written = context.Alloc(target, type);
  paddle_fused::kernels::cast(element_type(source.dtype()), source.data(), element_type(type), written, source.numel());
}

void Float32Arguments::bind_master(const DenseTensor* param, const DenseTensor* master, DenseTensor* param_out,
                                   DenseTensor* master_out) {
  carry_over(context_, *master, master_out);
  masters_.emplace_back(param, master_out);
  outputs_.emplace_back(param_out, master_out);
}

DenseTensor* Float32Arguments::copy_of(const DenseTensor* low) const {
  // Paddle passes two tensors that share memory to some in-place operators.
  for (const Copy& copy : copies_)
    if (copy.low == low || (low->initialized() && low->numel() > 0 && copy.low->numel() == low->numel() &&
                            copy.low->data() == low->data()))
      return copy.float32;
  return nullptr;
}

const DenseTensor* Float32Arguments::input(const DenseTensor* tensor) {
  for (const auto& [param, master] : masters_)
    if (param == tensor) return master;
  if (!tensor || !is_16_bit_float(tensor->dtype())) return tensor;
  if (DenseTensor* known = copy_of(tensor)) return known;
  cast_tensor(context_, *tensor, phi::DataType::FLOAT32, &storage_.emplace_back());
  copies_.push_back({tensor, &storage_.back()});
  return &storage_.back();
}

const phi::SelectedRows* Float32Arguments::input(const phi::SelectedRows* rows) {
  if (!rows || !is_16_bit_float(rows->value().dtype())) return rows;
  rows_.emplace_back(rows->rows(), rows->height());
  cast_tensor(context_, rows->value(), phi::DataType::FLOAT32, rows_.back().mutable_value());
  return &rows_.back();
}

DenseTensor* Float32Arguments::output(DenseTensor* tensor) {
  for (const auto& [low, float32] : outputs_)
    if (low == tensor) return float32;
  if (!tensor || !is_16_bit_float(tensor->dtype())) return tensor;
  DenseTensor* float32 = copy_of(tensor);
  if (!float32) {
    float32 = &storage_.emplace_back();
    float32->Resize(tensor->dims());
  }
  outputs_.emplace_back(tensor, float32);
  return float32;
}

void Float32Arguments::store() {
  for (const auto& [low, float32] : outputs_)
    if (float32->initialized()) cast_tensor(context_, *float32, low->dtype(), low);
}

}  // namespace virtual_npu
