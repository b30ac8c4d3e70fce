// one_hot: out[i, x[i]] = 1. An id outside [0, num_classes) gives a row of zeros, as on the NPU. The gradient of the
// vocabulary-parallel cross entropy relies on this, but Paddle's CPU kernel rejects such ids. one_hot_raw is the same
// for the operator one_hot_v2 of older programs, which also selects the dtype of the result.
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"
#include "paddle/phi/core/visit_type.h"

namespace virtual_npu {
namespace {

template <typename Id, typename Value>
void write_rows(const phi::CustomContext& context, const phi::DenseTensor& x, int64_t depth, phi::DenseTensor* out) {
  if (depth < 1)
    PADDLE_THROW(common::errors::InvalidArgument("one_hot: num_classes is %ld; accepted: 1 or more.", depth));
  auto shape = common::vectorize(x.dims());
  shape.push_back(depth);
  out->Resize(common::make_ddim(shape));
  Value* rows = context.Alloc<Value>(out);
  const int64_t count = x.numel();
  std::fill(rows, rows + count * depth, static_cast<Value>(0));
  if (count == 0) return;
  const Id* ids = x.data<Id>();
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] >= 0 && ids[i] < depth) rows[i * depth + ids[i]] = static_cast<Value>(1);
}

}  // namespace

template <typename T, typename Context>
void one_hot(const Context& context, const phi::DenseTensor& x, const phi::Scalar& num_classes,
             phi::DenseTensor* out) {
  write_rows<T, float>(context, x, num_classes.to<int64_t>(), out);
}

template <typename T, typename Context>
void one_hot_raw(const Context& context, const phi::DenseTensor& x, const phi::Scalar& depth, phi::DataType dtype,
                 bool /*allow_out_of_range*/, phi::DenseTensor* out) {
  PD_VISIT_ALL_TYPES(dtype, "one_hot_raw", ([&] { write_rows<T, data_t>(context, x, depth.to<int64_t>(), out); }));
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(one_hot, npu, ALL_LAYOUT, virtual_npu::one_hot, int, int64_t) {
  kernel->OutputAt(0).SetDataType(phi::DataType::FLOAT32);
}
PD_REGISTER_PLUGIN_KERNEL(one_hot_raw, npu, ALL_LAYOUT, virtual_npu::one_hot_raw, int, int64_t) {
  kernel->OutputAt(0).SetDataType(phi::DataType::UNDEFINED);
}
