// pf_grouped_matmul(factors, group_list; group_list_type, x_gradient, weight_gradient) -> out:
// kernels/grouped_matmul as an operator. A gradient that is not requested is empty.
//   factors: x [T, K], then one weight [E, K, N] or E weights [K, N]; group_list [E] int64 -> out [T, N]
//   out[r] = x[r] weight[g] for the rows r of group g
// A single list, because Paddle supports a list of gradients only as the sole output of a gradient operator.
// pf_grouped_matmul_dweight(x, dout, group_list; group_list_type) -> dweight [E, K, N]: x_g^T dout_g for each group.
// group_list_type: 0 cumulative sums, 1 counts. The groups cover all T rows.
#include "kernels/matmul/grouped_matmul.h"

#include "ops/operator.h"

namespace paddle_fused::ops::grouped_matmul {
namespace {

constexpr char kForward[] = "pf_grouped_matmul", kDweight[] = "pf_grouped_matmul_dweight";
constexpr int kCumulative = 0, kCounts = 1;

using Tensors = std::vector<Tensor>;

bool is_stacked(const Tensors& weight) { return weight.size() == 1 && weight[0].shape().size() == 3; }

void check_shapes(const Tensor& x, const Tensors& weight, const Tensor& group_list) {
  const Shape of_x = x.shape(), of_groups = group_list.shape();
  const bool stacked = is_stacked(weight);
  for (const Tensor& tensor : weight) {
    Shape matrix = tensor.shape();
    const int64_t groups = stacked ? matrix[0] : static_cast<int64_t>(weight.size());
    if (stacked) matrix.erase(matrix.begin());
    const bool ranks = of_x.size() == 2 && matrix.size() == 2 && of_groups.size() == 1;
    if (ranks && of_x[1] == matrix[0] && of_groups[0] == groups && tensor.shape() == weight[0].shape()) continue;
    refuse(kForward, "x has shape " + text(of_x) + ", weight " + text(tensor.shape()) +
                         (stacked ? "" : " of " + std::to_string(groups)) + " and group_list " + text(of_groups) +
                         "; accepted: x [T, K], weight [E, K, N] or E weights [K, N], and group_list [E].");
  }
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

// The first row of each group, followed by the total number of rows.
std::vector<int64_t> first_rows(const char* op, const Tensor& group_list, int group_list_type, int64_t rows) {
  const Tensor values = dense(group_list);
  const int64_t groups = values.numel();
  std::vector<int64_t> first{0};
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t value = values.data<int64_t>()[g];
    const int64_t before = first.back(), least = group_list_type == kCounts ? 0 : before;
    const int64_t most = group_list_type == kCounts ? rows - before : rows;
    if (value < least || value > most)
      refuse(op, "group_list is " + std::to_string(value) + " at position " + std::to_string(g) +
                     "; accepted: " + std::to_string(least) + " to " + std::to_string(most) +
                     " at this position, for " + std::to_string(rows) + " rows.");
    first.push_back(group_list_type == kCounts ? before + value : value);
  }
  if (first.back() != rows)
    refuse(op, "the groups cover " + std::to_string(first.back()) + " rows; accepted: all " + std::to_string(rows) +
                   " rows of x.");
  return first;
}

struct Factors {
  const Tensor& x;
  const Tensors weight;
};

Factors checked(const Tensors& factors, const Tensor& group_list, int group_list_type) {
  if (factors.size() < 2)
    refuse(kForward, "factors has " + std::to_string(factors.size()) + " tensors; accepted: x, then the weights.");
  const Factors found{factors[0], {factors.begin() + 1, factors.end()}};
  for (const Tensor& tensor : found.weight)
    check(kForward, {"x", found.x}, {"weight", tensor}, group_list, group_list_type);
  check_shapes(found.x, found.weight, group_list);
  return found;
}

kernels::GroupedMatmulShape kernel_shape(const Tensor& x, const Tensors& weight, const Tensor& group_list) {
  return {group_list.numel(), x.shape()[0], x.shape()[1], weight[0].shape().back()};
}

Tensors all_dense(Tensors tensors) {
  for (Tensor& tensor : tensors) tensor = dense(tensor);
  return tensors;
}

// The address of each group's matrix in `tensors`: one [E, K, N], or E of [K, N].
template <typename Address>
std::vector<Address> addresses(const Tensors& tensors, const kernels::GroupedMatmulShape& shape) {
  std::vector<Address> found;
  for (const Tensor& tensor : tensors) {
    char* data = static_cast<char*>(const_cast<void*>(tensor.data()));
    const int64_t matrices = tensors.size() == 1 ? shape.groups : 1;
    for (int64_t g = 0; g < matrices; ++g)
      found.push_back(data + g * shape.depth * shape.columns * phi::SizeOf(tensor.dtype()));
  }
  return found;
}

Tensors forward(const Tensors& factors, const Tensor& group_list, int group_list_type, bool /*x_gradient*/,
                bool /*weight_gradient*/) {
  const auto& [x, weight] = checked(factors, group_list, group_list_type);
  const auto shape = kernel_shape(x, weight, group_list);
  check_size(kForward, {shape.rows, shape.columns});
  const HostCall call(kForward, {x, weight[0]});
  const auto first = first_rows(kForward, group_list, group_list_type, shape.rows);
  const Tensor rows = dense(x);
  const Tensors matrices = all_dense(weight);
  Tensor out = paddle::empty({shape.rows, shape.columns}, x.dtype(), x.place());
  if (out.numel() > 0)
    kernels::grouped_matmul(element_type(x.dtype()), shape, first.data(), rows.data(),
                            addresses<const void*>(matrices, shape).data(), out.data());
  return {out};
}

void weight_gradient_of(const Tensor& x, const Tensor& dout, const kernels::GroupedMatmulShape& shape,
                        const std::vector<int64_t>& first, const Tensors& dweight) {
  if (shape.groups * shape.depth * shape.columns == 0) return;
  const Tensor rows = dense(x), gradient = dense(dout);
  kernels::grouped_matmul_dweight(element_type(x.dtype()), shape, first.data(), rows.data(), gradient.data(),
                                  addresses<void*>(dweight, shape).data());
}

Tensors backward(const Tensor& dout, const Tensors& factors, const Tensor& group_list, int group_list_type,
                 bool x_gradient, bool weight_gradient) {
  const auto& [x, weight] = checked(factors, group_list, group_list_type);
  const auto shape = kernel_shape(x, weight, group_list);
  check_gradient(kForward, {"the gradient of out", dout}, {"x", x}, {shape.rows, shape.columns});
  const HostCall call("pf_grouped_matmul_grad", {x, weight[0]});
  const auto first = first_rows(kForward, group_list, group_list_type, shape.rows);
  const Tensor gradient = dense(dout);
  Tensor dx = empty_if(x_gradient, x);
  if (dx.numel() > 0) {
    const Tensors matrices = all_dense(weight);
    kernels::grouped_matmul_dx(element_type(x.dtype()), shape, first.data(), gradient.data(),
                               addresses<const void*>(matrices, shape).data(), dx.data());
  }
  Tensors gradients;
  for (const Tensor& tensor : weight) gradients.push_back(empty_if(weight_gradient, tensor));
  if (weight_gradient) weight_gradient_of(x, gradient, shape, first, gradients);
  gradients.insert(gradients.begin(), dx);
  return gradients;
}

std::vector<Tensor> dweight(const Tensor& x, const Tensor& dout, const Tensor& group_list, int group_list_type) {
  check(kDweight, {"x", x}, {"dout", dout}, group_list, group_list_type);
  check_dweight_shapes(x.shape(), dout.shape(), group_list.shape());
  const kernels::GroupedMatmulShape shape{group_list.numel(), x.shape()[0], x.shape()[1], dout.shape()[1]};
  check_size(kDweight, {shape.groups, shape.depth, shape.columns});
  const HostCall call(kDweight, x);
  const auto first = first_rows(kDweight, group_list, group_list_type, shape.rows);
  Tensor out = paddle::empty({shape.groups, shape.depth, shape.columns}, x.dtype(), x.place());
  weight_gradient_of(x, dout, shape, first, {out});
  return {out};
}

// Paddle 3.3.1 terminates the process if shape inference throws while a program is captured, so invalid inputs are
// rejected at run time. Unknown sizes are -1.
int64_t first(const Shape& shape) { return shape.empty() ? -1 : shape.front(); }
int64_t last(const Shape& shape) { return shape.empty() ? -1 : shape.back(); }

std::vector<Shape> infer_shapes(const std::vector<Shape>& factors, const Shape&, int, bool, bool) {
  return {{factors.empty() ? -1 : first(factors.front()), factors.empty() ? -1 : last(factors.back())}};
}
std::vector<DataType> infer_dtypes(const std::vector<DataType>& factors, const DataType&) { return {factors.at(0)}; }

// Like PF_FIRST_DERIVATIVE_ONLY, for a list.
Tensors second_derivative(const Tensors& /*ddfactors*/) { refuse_second_derivative(kForward); }
std::vector<Shape> infer_second_shapes(const std::vector<Shape>& ddfactors) { return {ddfactors.at(0)}; }
std::vector<DataType> infer_second_dtypes(const std::vector<DataType>& ddfactors) { return {ddfactors.at(0)}; }

std::vector<Shape> infer_dweight_shapes(const Shape& x, const Shape& dout, const Shape& group_list, int) {
  return {{first(group_list), last(x), last(dout)}};
}
std::vector<DataType> infer_dweight_dtypes(const DataType& x, const DataType&, const DataType&) { return {x}; }

}  // namespace
}  // namespace paddle_fused::ops::grouped_matmul

PD_BUILD_OP(pf_grouped_matmul)
    .Inputs({paddle::Vec("factors"), "group_list"})
    .Outputs({"out"})
    .Attrs({"group_list_type: int", "x_gradient: bool", "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::grouped_matmul::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::grouped_matmul::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::grouped_matmul::infer_dtypes));

// Paddle infers the shapes and dtypes of a list of gradients from the corresponding inputs.
PD_BUILD_GRAD_OP(pf_grouped_matmul)
    .Inputs({paddle::Grad("out"), paddle::Vec("factors"), "group_list"})
    .Outputs({paddle::Grad(paddle::Vec("factors"))})
    .Attrs({"group_list_type: int", "x_gradient: bool", "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::grouped_matmul::backward));

PD_BUILD_DOUBLE_GRAD_OP(pf_grouped_matmul)
    .Inputs({paddle::Grad(paddle::Grad(paddle::Vec("factors")))})
    .Outputs({paddle::Grad(paddle::Grad("out"))})
    .SetKernelFn(PD_KERNEL(paddle_fused::ops::grouped_matmul::second_derivative))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::grouped_matmul::infer_second_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::grouped_matmul::infer_second_dtypes));

PD_BUILD_OP(pf_grouped_matmul_dweight)
    .Inputs({"x", "dout", "group_list"})
    .Outputs({"dweight"})
    .Attrs({"group_list_type: int"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::grouped_matmul::dweight))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::grouped_matmul::infer_dweight_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::grouped_matmul::infer_dweight_dtypes));
