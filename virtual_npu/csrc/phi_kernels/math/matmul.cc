// matmul and its gradient in bfloat16 and float16: out = X Y, dX = dOut Y^T, dY = X^T dOut. Batch dimensions are
// broadcast as in numpy, and the gradient of a broadcast operand is summed over them. Paddle's CPU kernels do not
// support 16-bit types; here, products are summed in float32 and rounded once. Paddle computes float32 and float64.
#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <string>
#include <vector>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using phi::DenseTensor;
using Shape = std::vector<int64_t>;

int64_t count(const Shape& shape) {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

// A batch of consecutive dense matrices.
struct Matrices {
  void* data;
  Shape batch;
  int64_t rows, columns, row_stride, column_stride;

  Matrices transposed() const { return {data, batch, columns, rows, column_stride, row_stride}; }
  int64_t elements() const { return rows * columns; }
  bool is_row_major() const { return column_stride == 1 && row_stride == columns; }
};

enum class VectorIs { kRow, kColumn };

// The matrices of a dense tensor as operands. A vector is one row or one column.
Matrices matrices(const void* data, const Shape& shape, VectorIs vector, bool transpose) {
  void* first = const_cast<void*>(data);
  if (shape.size() < 2) {
    const int64_t size = count(shape);
    if (vector == VectorIs::kRow) return {first, {}, 1, size, size, 1};
    return {first, {}, size, 1, 1, 1};
  }
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const Matrices stored{first, Shape(shape.begin(), shape.end() - 2), rows, columns, columns, 1};
  return transpose ? stored.transposed() : stored;
}

// The common batch of both operands. `fits` is whether there is one.
Shape broadcast(const Shape& x, const Shape& y, bool* fits) {
  Shape batch(std::max(x.size(), y.size()));
  for (size_t i = 0; i < batch.size(); ++i) {  // from the last dimension
    const int64_t a = i < x.size() ? x[x.size() - 1 - i] : 1, b = i < y.size() ? y[y.size() - 1 - i] : 1;
    *fits &= a == b || a == 1 || b == 1;
    batch[batch.size() - 1 - i] = a == 1 ? b : a;
  }
  return batch;
}

// The number of the matrix at entry `index` of `batch`, for an operand with batch shape `own` that is broadcast to
// it.
int64_t matrix_at(int64_t index, const Shape& batch, const Shape& own) {
  int64_t number = 0, step = 1;
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t size = own[own.size() - 1 - i], position = index % batch[batch.size() - 1 - i];
    if (size != 1) number += position * step;
    step *= size;
    index /= batch[batch.size() - 1 - i];
  }
  return number;
}

// Combines several small products into a large one if the memory layout allows it.
void fold(Matrices* a, Matrices* b, Matrices* out) {
  const int64_t many = count(a->batch);
  if (many < 2) return;
  if (count(b->batch) == 1 && out->batch == a->batch && a->is_row_major()) {
    a->rows *= many;  // X W for a batch of X
    out->rows *= many;
  } else if (a->batch == b->batch && count(out->batch) == 1 && a->transposed().is_row_major() && b->is_row_major()) {
    a->columns *= many;  // the sum of X^T dOut over a batch
    b->rows *= many;
  } else {
    return;
  }
  a->batch = b->batch = out->batch = {};
}

// out = a b, summed over the batch dimensions that out lacks or has with size 1.
void multiply(phi::DataType type, Matrices a, Matrices b, Matrices out) {
  if (out.column_stride != 1) {  // the result is stored transposed
    out = out.transposed();
    std::swap(a, b);
    a = a.transposed();
    b = b.transposed();
  }
  fold(&a, &b, &out);
  bool fits = true;
  const Shape batch = broadcast(a.batch, b.batch, &fits);
  const int64_t outputs = count(out.batch), products = count(batch), terms = outputs ? products / outputs : 0;
  Shape a_offsets(products), b_offsets(products), used(outputs, 0);
  for (int64_t i = 0; i < products; ++i) {
    const int64_t output = matrix_at(i, batch, out.batch), place = output * terms + used[output]++;
    a_offsets[place] = matrix_at(i, batch, a.batch) * a.elements();
    b_offsets[place] = matrix_at(i, batch, b.batch) * b.elements();
  }
  kernels::matmul({element_type(type), out.rows, out.columns, a.columns, outputs, terms},
                  {a.data, a.row_stride, a.column_stride, a_offsets.data()},
                  {b.data, b.row_stride, b.column_stride, b_offsets.data()}, out.data);
}

// X, Y and their product.
struct Operands {
  Matrices x, y;
  Shape batch, out_shape;

  Operands(const DenseTensor& x_tensor, const DenseTensor& y_tensor, bool transpose_x, bool transpose_y) {
    const Shape x_shape = common::vectorize(x_tensor.dims()), y_shape = common::vectorize(y_tensor.dims());
    x = matrices(x_tensor.data(), x_shape, VectorIs::kRow, transpose_x);
    y = matrices(y_tensor.data(), y_shape, VectorIs::kColumn, transpose_y);
    bool fits = x.columns == y.rows;
    batch = broadcast(x.batch, y.batch, &fits);
    if (!fits)
      PADDLE_THROW(common::errors::InvalidArgument(
          "matmul: x has shape [%s]%s and y [%s]%s; accepted: x with as many columns as y has rows, and leading "
          "dimensions that are equal or 1. Reshape or transpose one of them.",
          x_tensor.dims(), transpose_x ? " (transposed)" : "", y_tensor.dims(), transpose_y ? " (transposed)" : ""));
    out_shape = batch;
    if (x_shape.size() > 1) out_shape.push_back(x.rows);
    if (y_shape.size() > 1) out_shape.push_back(y.columns);
  }

  Matrices product(const void* data) const {
    return {const_cast<void*>(data), batch, x.rows, y.columns, y.columns, 1};
  }
};

Matrices with_data(const Matrices& operand, void* data) {
  Matrices result = operand;
  result.data = data;
  return result;
}

}  // namespace

template <typename T, typename Context>
void matmul(const Context& context, const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y,
            DenseTensor* out) {
  const Operands operands(x, y, transpose_x, transpose_y);
  out->Resize(common::make_ddim(operands.out_shape));
  multiply(x.dtype(), operands.x, operands.y, operands.product(context.template Alloc<T>(out)));
}

template <typename T, typename Context>
void matmul_grad(const Context& context, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                 bool transpose_x, bool transpose_y, DenseTensor* x_grad, DenseTensor* y_grad) {
  const Operands operands(x, y, transpose_x, transpose_y);
  const Matrices dout = operands.product(out_grad.data());
  if (x_grad) {
    x_grad->Resize(x.dims());
    T* dx = context.template Alloc<T>(x_grad);
    multiply(x.dtype(), dout, operands.y.transposed(), with_data(operands.x, dx));
  }
  if (y_grad) {
    y_grad->Resize(y.dims());
    T* dy = context.template Alloc<T>(y_grad);
    multiply(x.dtype(), operands.x.transposed(), dout, with_data(operands.y, dy));
  }
}

}  // namespace virtual_npu

PD_REGISTER_PLUGIN_KERNEL(matmul, npu, ALL_LAYOUT, virtual_npu::matmul, phi::dtype::float16, phi::dtype::bfloat16) {}
PD_REGISTER_PLUGIN_KERNEL(matmul_grad, npu, ALL_LAYOUT, virtual_npu::matmul_grad, phi::dtype::float16,
                          phi::dtype::bfloat16) {}
