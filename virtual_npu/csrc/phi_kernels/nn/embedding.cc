// embedding and its dense gradient in float32, bfloat16 and float16. Paddle's CPU kernel sums the gradient in the
// weight's precision, on one thread, and does not check ids if padding_idx is set.
#include "kernels/indexing/embedding.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/integer_values.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;

std::vector<int64_t> checked_ids(const DenseTensor& ids, int64_t vocabulary, int64_t padding_idx) {
  const std::vector<int64_t> values = integer_values(ids, "embedding: ids");
  for (int64_t id : values) {
    if ((id >= 0 && id < vocabulary) || (id == padding_idx && padding_idx != kernels::kNoPadding)) continue;
    PADDLE_THROW(common::errors::InvalidArgument(
        "embedding: an id is %ld; accepted: 0 to %ld (the rows of the weight). Check the input, or the size of the "
        "vocabulary.",
        id, vocabulary - 1));
  }
  return values;
}

kernels::EmbeddingShape shape_of(const DenseTensor& ids, const DenseTensor& weight) {
  return {weight.dims()[0], weight.dims()[1], ids.numel()};
}

}  // namespace

template <typename T, typename Context>
void embedding(const Context& context, const DenseTensor& ids, const DenseTensor& weight, int64_t padding_idx,
               DenseTensor* out) {
  const kernels::EmbeddingShape shape = shape_of(ids, weight);
  const std::vector<int64_t> values = checked_ids(ids, shape.vocabulary, padding_idx);
  T* rows = context.template Alloc<T>(out);
  if (out->numel() == 0) return;
  kernels::embedding_forward(element_type(weight.dtype()), shape, values.data(), padding_idx, weight.data<T>(), rows);
}

// The weight's values are not saved for backward, so only its shape and dtype may be read here.
template <typename T, typename Context>
void embedding_grad(const Context& context, const DenseTensor& ids, const DenseTensor& weight,
                    const DenseTensor& out_grad, int64_t padding_idx, DenseTensor* weight_grad) {
  const kernels::EmbeddingShape shape = shape_of(ids, weight);
  const std::vector<int64_t> values = checked_ids(ids, shape.vocabulary, padding_idx);
  T* dweight = context.template Alloc<T>(weight_grad);
  if (weight_grad->numel() == 0) return;
  const T* rows = out_grad.numel() > 0 ? out_grad.data<T>() : nullptr;
  kernels::embedding_backward(element_type(weight_grad->dtype()), shape, values.data(), padding_idx, rows, dweight);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(embedding, npu, ALL_LAYOUT, virtual_npu::embedding, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(embedding_grad, npu, ALL_LAYOUT, virtual_npu::embedding_grad, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
