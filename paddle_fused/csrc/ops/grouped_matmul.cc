// pf_grouped_matmul(x, weight, group_list; group_list_type, x_gradient, weight_gradient) -> out:
// kernels/grouped_matmul as an operator. A gradient that is not asked for has no elements.
//   x [T, K], weight [E, K, N], group_list [E] int64 -> out [T, N]; out[r] = x[r] weight[g] for the rows r of group g
// pf_grouped_matmul_dweight(x, dout, group_list; group_list_type) -> dweight [E, K, N]: x_g^T dout_g for each group.
// group_list_type: 0 cumulative sums, 1 counts. The groups hold all T rows.
#include "kernels/matmul/grouped_matmul.h"

#include "ops/operator.h"

namespace paddle_fused::ops {
namespace {

constexpr char kForward[] = "pf_grouped_matmul", kDweight[] = "pf_grouped_matmul_dweight";
constexpr int kCumulative = 0, kCounts = 1;

void check_shapes(const Shape& x, const Shape& weight, const Shape& group_list) {
  const bool ranks = x.size() == 2 && weight.size() == 3 && group_list.size() == 1;
  if (ranks && x[1] == weight[1] && weight[0] == group_list[0]) return;
  refuse(kForward, "x has shape " + text(x) + ", weight " + text(weight) + " and group_list " + text(group_list) +
                       "; accepted: x [T, K], weight [E, K, N] and group_list [E].");
}
void check_dweight_shapes(const Shape& x, const Shape& dout, const Shape& group_list) {
  if (x.size() == 2 && dout.size() == 2 && group_list.size() == 1 && x[0] == dout[0]) return;
  refuse(kDweight, "x has shape " + text(x) + ", dout " + text(dout) + " and group_list " + text(group_list) +
                       "; accepted: x [T, K], dout [T, N] and group_list [E].");
}

void check(const char* op, const Argument& x, const Argument& other, const Tensor& group_list, int group_list_type) {
  check_places(op, {x, other, {"group_list", group_list}});
  check_float(op, x);
  check_same_dtype(op, {x, other});
  if (group_list.dtype() != DataType::INT64)
    refuse(op, "group_list is " + text(group_list.dtype()) + "; accepted: int64. Cast it with tensor.astype.");
  if (group_list_type != kCumulative && group_list_type != kCounts)
    refuse(op, "group_list_type is " + std::to_string(group_list_type) +
                   "; accepted: 0 (cumulative sums) or 1 (counts).");
}

// The row at which each group starts, and the number of rows at the end.
std::vector<int64_t> first_rows(const char* op, const Tensor& group_list, int group_list_type, int64_t rows) {
  const Tensor values = dense(group_list);
  const int64_t groups = values.numel();
  std::vector<int64_t> first{0};
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t value = values.data<int64_t>()[g];
    const int64_t before = first.back(), least = group_list_type == kCounts ? 0 : before;
    const int64_t most = group_list_type == kCounts ? rows - before : rows;
    if (value < least || value > most)
      refuse(op, "group_list holds " + std::to_string(value) + " at position " + std::to_string(g) +
                     "; accepted there: from " + std::to_string(least) + " to " + std::to_string(most) + ", for " +
                     std::to_string(rows) + " rows.");
    first.push_back(group_list_type == kCounts ? before + value : value);
  }
  if (first.back() != rows)
    refuse(op, "the groups hold " + std::to_string(first.back()) + " rows; accepted: all " + std::to_string(rows) +
                   " rows of x.");
  return first;
}

kernels::GroupedMatmulShape kernel_shape(const Shape& x, const Shape& weight) {
  return {weight[0], x[0], x[1], weight[2]};
}

std::vector<Tensor> forward(const Tensor& x, const Tensor& weight, const Tensor& group_list, int group_list_type,
                            bool /*x_gradient*/, bool /*weight_gradient*/) {
  check(kForward, {"x", x}, {"weight", weight}, group_list, group_list_type);
  check_shapes(x.shape(), weight.shape(), group_list.shape());
  const auto shape = kernel_shape(x.shape(), weight.shape());
  check_size(kForward, {shape.rows, shape.columns});
  const HostCall call(kForward, {x, weight});
  const auto first = first_rows(kForward, group_list, group_list_type, shape.rows);
  const Tensor rows = dense(x), matrices = dense(weight);
  Tensor out = paddle::empty({shape.rows, shape.columns}, x.dtype(), x.place());
  if (out.numel() > 0)
    kernels::grouped_matmul(element_type(x.dtype()), shape, first.data(), rows.data(), matrices.data(), out.data());
  return {out};
}

Tensor weight_gradient_of(const Tensor& x, const Tensor& dout, const kernels::GroupedMatmulShape& shape,
                          const std::vector<int64_t>& first) {
  const Tensor rows = dense(x), gradient = dense(dout);
  Tensor dweight = paddle::empty({shape.groups, shape.depth, shape.columns}, x.dtype(), x.place());
  if (dweight.numel() > 0)
    kernels::grouped_matmul_dweight(element_type(x.dtype()), shape, first.data(), rows.data(), gradient.data(),
                                    dweight.data());
  return dweight;
}

std::vector<Tensor> backward(const Tensor& dout, const Tensor& x, const Tensor& weight, const Tensor& group_list,
                             int group_list_type, bool x_gradient, bool weight_gradient) {
  check(kForward, {"x", x}, {"weight", weight}, group_list, group_list_type);
  check_shapes(x.shape(), weight.shape(), group_list.shape());
  check_gradient(kForward, {"the gradient of out", dout}, {"x", x}, {x.shape()[0], weight.shape()[2]});
  const HostCall call("pf_grouped_matmul_grad", x);
  const auto shape = kernel_shape(x.shape(), weight.shape());
  const auto first = first_rows(kForward, group_list, group_list_type, shape.rows);
  const Tensor gradient = dense(dout), matrices = dense(weight);
  Tensor dx = empty_if(x_gradient, x);
  if (dx.numel() > 0)
    kernels::grouped_matmul_dx(element_type(x.dtype()), shape, first.data(), gradient.data(), matrices.data(),
                               dx.data());
  return {dx, weight_gradient ? weight_gradient_of(x, gradient, shape, first) : empty_if(false, weight)};
}

std::vector<Tensor> dweight(const Tensor& x, const Tensor& dout, const Tensor& group_list, int group_list_type) {
  check(kDweight, {"x", x}, {"dout", dout}, group_list, group_list_type);
  check_dweight_shapes(x.shape(), dout.shape(), group_list.shape());
  const kernels::GroupedMatmulShape shape{group_list.numel(), x.shape()[0], x.shape()[1], dout.shape()[1]};
  check_size(kDweight, {shape.groups, shape.depth, shape.columns});
  const HostCall call(kDweight, x);
  return {weight_gradient_of(x, dout, shape, first_rows(kDweight, group_list, group_list_type, shape.rows))};
}

// Paddle 3.3.1 ends the process if shape inference throws while a program is captured: what does not fit is refused when
// it runs. A size that is not known yet is -1.
int64_t first(const Shape& shape) { return shape.empty() ? -1 : shape.front(); }
int64_t last(const Shape& shape) { return shape.empty() ? -1 : shape.back(); }

std::vector<Shape> infer_shapes(const Shape& x, const Shape& weight, const Shape&, int, bool, bool) {
  return {{first(x), last(weight)}};
}
std::vector<DataType> infer_dtypes(const DataType& x, const DataType&, const DataType&) { return {x}; }
std::vector<Shape> infer_gradient_shapes(const Shape&, const Shape& x, const Shape& weight, const Shape&, int, bool,
                                         bool) {
  return {x, weight};
}
std::vector<DataType> infer_gradient_dtypes(const DataType&, const DataType& x, const DataType& weight,
                                            const DataType&) {
  return {x, weight};
}
std::vector<Shape> infer_dweight_shapes(const Shape& x, const Shape& dout, const Shape& group_list, int) {
  return {{first(group_list), last(x), last(dout)}};
}
std::vector<DataType> infer_dweight_dtypes(const DataType& x, const DataType&, const DataType&) { return {x}; }

}  // namespace
}  // namespace paddle_fused::ops

PD_BUILD_OP(pf_grouped_matmul)
    .Inputs({"x", "weight", "group_list"})
    .Outputs({"out"})
    .Attrs({"group_list_type: int", "x_gradient: bool", "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_dtypes));

PD_BUILD_GRAD_OP(pf_grouped_matmul)
    .Inputs({paddle::Grad("out"), "x", "weight", "group_list"})
    .Outputs({paddle::Grad("x"), paddle::Grad("weight")})
    .Attrs({"group_list_type: int", "x_gradient: bool", "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_grouped_matmul, "x", "out");

PD_BUILD_OP(pf_grouped_matmul_dweight)
    .Inputs({"x", "dout", "group_list"})
    .Outputs({"dweight"})
    .Attrs({"group_list_type: int"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::dweight))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::infer_dweight_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::infer_dweight_dtypes));
