// The gradients of a linear layer's parameters, accumulated over micro-batches:
//   dweight_out = x^T dout + dweight    [K, N] = [M, K]^T [M, N]; M is the product of the leading dimensions
//   dbias_out   = sum over M of dout + dbias    [N]
// dweight is updated in place. 16-bit x and dout are multiplied and summed in float32. With multi_precision, the
// result stays float32 (dweight and dbias are then float32); otherwise it is rounded once to their type.
#include <memory>

#include "paddle/phi/api/include/api.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/optimizers/float32_arguments.h"

namespace virtual_npu {
namespace {

using paddle::Tensor;
using paddle::optional;
using phi::CustomContext;
using phi::DataType;
using phi::DenseTensor;

Tensor as_tensor(const DenseTensor& dense) { return Tensor(std::make_shared<DenseTensor>(dense)); }
DenseTensor& dense_of(const Tensor& tensor) { return *static_cast<DenseTensor*>(tensor.impl().get()); }

// A 16-bit tensor in float32, otherwise the tensor itself.
Tensor widened(const CustomContext& context, const DenseTensor& tensor) {
  if (!is_16_bit_float(tensor.dtype())) return as_tensor(tensor);
  DenseTensor wide;
  cast_tensor(context, tensor, DataType::FLOAT32, &wide);
  return as_tensor(wide);
}

// [..., N] -> [M, N]
Tensor as_matrix(const CustomContext& context, const DenseTensor& tensor) {
  const auto& dims = tensor.dims();
  int64_t rows = 1;
  for (int i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
  DenseTensor matrix = tensor;
  matrix.Resize({rows, dims[dims.size() - 1]});
  return widened(context, matrix);
}

void check_dtype(const char* name, const DenseTensor& tensor, DataType type, bool multi_precision) {
  if (tensor.dtype() == type) return;
  PADDLE_THROW(common::errors::InvalidArgument(
      "fused_linear_param_grad_add: %s is %s; with multi_precision %s it must be %s. Cast it, or change "
      "multi_precision.",
      name, phi::DataTypeToString(tensor.dtype()), multi_precision ? "True" : "False", phi::DataTypeToString(type)));
}

// Stores `gradient` as `out`, rounded to `type` if it is wider. Uses the existing memory of `out`, if any.
void store(const CustomContext& context, const Tensor& gradient, DataType type, DenseTensor* out) {
  const DenseTensor& dense = dense_of(gradient);
  if (dense.dtype() == type)
    *out = dense;
  else
    cast_tensor(context, dense, type, out);
}

}  // namespace

template <typename T, typename Context>
void fused_linear_param_grad_add(const Context& context, const DenseTensor& x, const DenseTensor& dout,
                                 const optional<DenseTensor>& dweight, const optional<DenseTensor>& dbias,
                                 bool multi_precision, bool has_bias, DenseTensor* dweight_out,
                                 DenseTensor* dbias_out) {
  namespace api = paddle::experimental;
  const DataType type = multi_precision && is_16_bit_float(dout.dtype()) ? DataType::FLOAT32 : dout.dtype();
  const Tensor rows = as_matrix(context, dout);
  if (dweight_out) {
    const Tensor inputs = as_matrix(context, x);
    // Paddle 3.0 leaves the product of an empty matrix uninitialized.
    Tensor gradient = rows.dims()[0] == 0
                          ? api::full(std::vector<int64_t>{inputs.dims()[1], rows.dims()[1]}, 0, rows.dtype(),
                                      context.GetPlace())
                          : api::matmul(inputs, rows, true, false);
    if (dweight) {
      check_dtype("dweight", *dweight, type, multi_precision);
      *dweight_out = *dweight;
      Tensor sum = widened(context, *dweight);
      gradient = api::add_(sum, gradient);
    }
    store(context, gradient, type, dweight_out);
  }
  if (has_bias && dbias_out) {
    Tensor gradient = api::sum(rows, {0});
    if (dbias) {
      check_dtype("dbias", *dbias, type, multi_precision);
      gradient = api::add(gradient, widened(context, *dbias));
    }
    store(context, gradient, type, dbias_out);
  }
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(fused_linear_param_grad_add, npu, ALL_LAYOUT, virtual_npu::fused_linear_param_grad_add,
                          float, double, phi::dtype::float16, phi::dtype::bfloat16) {
  kernel->OutputAt(0).SetDataType(phi::DataType::UNDEFINED);
  kernel->OutputAt(1).SetDataType(phi::DataType::UNDEFINED);
}
