// c_embedding and its gradient: this rank's rows of an embedding, zeros for ids in other ranks' rows. Paddle's
// version for custom devices creates ten tensors, and sums the gradient in the weight's precision.
#include "kernels/indexing/embedding.h"

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/integer_values.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;

constexpr int64_t kElsewhere = -2;  // a padding_idx: the host kernel neither reads nor writes a row for it

// The ids as rows of this rank's weight, which starts at row `start`. `vocabulary`: total size over all ranks, or -1.
std::vector<int64_t> own_rows(const DenseTensor& ids, int64_t start, int64_t rows, int64_t vocabulary) {
  std::vector<int64_t> values = integer_values(ids, "c_embedding: ids");
  for (int64_t& id : values) {
    PADDLE_ENFORCE_EQ(
        vocabulary <= 0 || (id >= 0 && id < vocabulary), true,
        common::errors::InvalidArgument("c_embedding: an id is %ld; accepted: 0 to %ld (the vocabulary of all "
                                        "ranks). Check the input, or the size of the vocabulary.",
                                        id, vocabulary - 1));
    id = id >= start && id < start + rows ? id - start : kElsewhere;
  }
  return values;
}

}  // namespace

template <typename T, typename Context>
void c_embedding(const Context& context, const DenseTensor& weight, const DenseTensor& ids, int64_t start_index,
                 int64_t vocab_size, DenseTensor* out) {
  const int64_t rows = weight.dims()[0], width = weight.dims()[1];
  const std::vector<int64_t> values = own_rows(ids, start_index, rows, vocab_size);
  T* found = context.template Alloc<T>(out);
  if (out->numel() == 0) return;
  kernels::embedding_forward(element_type(weight.dtype()), {rows, width, ids.numel()}, values.data(), kElsewhere,
                             weight.data<T>(), found);
}

// Only the shape of the weight is read.
template <typename T, typename Context>
void c_embedding_grad(const Context& context, const DenseTensor& weight, const DenseTensor& ids,
                      const DenseTensor& out_grad, int64_t start_index, DenseTensor* weight_grad) {
  const int64_t rows = weight.dims()[0], width = weight.dims()[1];
  const std::vector<int64_t> values = own_rows(ids, start_index, rows, -1);
  weight_grad->Resize(weight.dims());
  T* dweight = context.template Alloc<T>(weight_grad);
  if (weight_grad->numel() == 0) return;
  kernels::embedding_backward(element_type(weight_grad->dtype()), {rows, width, ids.numel()}, values.data(), kElsewhere,
                              out_grad.numel() > 0 ? out_grad.data<T>() : nullptr, dweight);
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(c_embedding, npu, ALL_LAYOUT, virtual_npu::c_embedding, float, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(c_embedding_grad, npu, ALL_LAYOUT, virtual_npu::c_embedding_grad, float,
                          phi::dtype::float16, phi::dtype::bfloat16) {}
