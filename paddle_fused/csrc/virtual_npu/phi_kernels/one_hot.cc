// one_hot: out[i, x[i]] = 1. An id outside of [0, num_classes) gives a row of zeros, as on the NPU; the gradient of the
// vocabulary-parallel cross entropy relies on it, and Paddle's CPU kernel refuses such ids.
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"

namespace virtual_npu {

template <typename T, typename Context>
void one_hot(const Context& context, const phi::DenseTensor& x, const phi::Scalar& num_classes,
             phi::DenseTensor* out) {
  const int64_t depth = num_classes.to<int64_t>(), count = x.numel();
  if (depth < 1)
    PADDLE_THROW(common::errors::InvalidArgument("one_hot: num_classes is %ld; accepted: 1 and more.", depth));
  auto shape = common::vectorize(x.dims());
  shape.push_back(depth);
  out->Resize(common::make_ddim(shape));
  float* rows = context.template Alloc<float>(out);
  std::fill(rows, rows + count * depth, 0.0f);
  if (count == 0) return;
  const T* ids = x.data<T>();
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] >= 0 && ids[i] < depth) rows[i * depth + ids[i]] = 1.0f;
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(one_hot, npu, ALL_LAYOUT, virtual_npu::one_hot, int, int64_t) {
  kernel->OutputAt(0).SetDataType(phi::DataType::FLOAT32);
}
