// pf_linear_cross_entropy(hidden, weight, labels, first_ids; ignore_index, vocabulary, transpose_weight,
//                         hidden_gradient, weight_gradient) -> (lse, target)
// pf_linear_cross_entropy_with_backward(hidden, weight, labels; ignore_index, transpose_weight, mean, hidden_gradient,
//                                       weight_gradient) -> (losses, dhidden, dweight)
// kernels/linear_cross_entropy as operators, over the last dimension of hidden. The second one, for float32, also
// computes the gradients of the losses' sum, or of their mean over the tokens that are not ignored, and is not
// differentiable. (A name with "_grad" would make Paddle treat it as a gradient operator.) A gradient that is not
// requested is empty.
//
// hidden [..., H], weight [H, V] (or [V, H]), labels [...] and first_ids [G] in int64, lse and target [..., G] in
// float32. The vocabulary has G equal blocks, and first_ids has the id of each block's first entry. If the vocabulary
// is sharded over devices, a device's part of first_ids identifies the entries in its part of weight. `vocabulary` is
// the total size, for checking labels; -1 if it is unknown in a captured program.
#include "kernels/losses/linear_cross_entropy.h"

#include <algorithm>

#include "ops/operator.h"

namespace paddle_fused::ops::linear_cross_entropy {
namespace {

constexpr char kOp[] = "pf_linear_cross_entropy", kWithBackward[] = "pf_linear_cross_entropy_with_backward";
constexpr int64_t kVocabularyOfWeight = -1;

void check_shapes(const Shape& hidden, const Shape& weight, const Shape& labels, const Shape& first_ids,
                  bool transpose_weight) {
  bool right = !hidden.empty() && weight.size() == 2 && first_ids.size() == 1 && labels.size() + 1 == hidden.size();
  for (size_t i = 0; right && i < labels.size(); ++i) right = labels[i] == hidden[i];
  if (right && weight[transpose_weight ? 1 : 0] == hidden.back()) return;
  refuse(kOp, "hidden has shape " + text(hidden) + ", weight " + text(weight) + ", labels " + text(labels) +
                  " and first_ids " + text(first_ids) + "; accepted: hidden [..., H], weight " +
                  (transpose_weight ? "[V, H]" : "[H, V]") + ", labels [...], first_ids [G].");
}

void check_labels(const Tensor& labels, int64_t ignore_index, int64_t vocabulary) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] == ignore_index || (label[i] >= 0 && label[i] < vocabulary)) continue;
    refuse(kOp, "a label is " + std::to_string(label[i]) + "; accepted: 0 to " + std::to_string(vocabulary - 1) +
                    " (the vocabulary of weight) and ignore_index " + std::to_string(ignore_index) + ".");
  }
}

// The arguments of forward and backward, checked and dense.
struct Arguments {
  Tensor hidden, weight, labels, first_ids;
  kernels::LinearCrossEntropyProblem problem;

  Arguments(const Tensor& given_hidden, const Tensor& given_weight, const Tensor& given_labels,
            const Tensor& given_first_ids, int64_t ignore_index, int64_t vocabulary, bool transpose_weight) {
    check_places(kOp, {{"hidden", given_hidden},
                       {"weight", given_weight},
                       {"labels", given_labels},
                       {"first_ids", given_first_ids}});
    check_float(kOp, {"hidden", given_hidden});
    check_same_dtype(kOp, {{"hidden", given_hidden}, {"weight", given_weight}});
    for (const Argument& ids : {Argument{"labels", given_labels}, Argument{"first_ids", given_first_ids}})
      if (ids.tensor.dtype() != DataType::INT64)
        refuse(kOp, std::string(ids.name) + " is " + text(ids.tensor.dtype()) + "; accepted: int64.");
    check_shapes(given_hidden.shape(), given_weight.shape(), given_labels.shape(), given_first_ids.shape(),
                 transpose_weight);
    hidden = dense(given_hidden);
    weight = dense(given_weight);
    labels = dense(given_labels);
    first_ids = dense(given_first_ids);
    const int64_t entries = weight.shape()[transpose_weight ? 0 : 1], blocks = first_ids.numel();
    if (entries == 0 || blocks == 0 || entries % blocks != 0)
      refuse(kOp, "weight has " + std::to_string(entries) + " entries of the vocabulary and first_ids " +
                      std::to_string(blocks) + " blocks; accepted: at least one, in blocks of equal size.");
    if (vocabulary < 0 && blocks != 1)
      refuse(kOp, "vocabulary is " + std::to_string(vocabulary) + " and first_ids has " + std::to_string(blocks) +
                      " blocks; accepted: the size of the whole vocabulary, or -1 if weight contains all of it.");
    check_labels(labels, ignore_index, vocabulary < 0 ? entries : vocabulary);
    problem = {element_type(hidden.dtype()), labels.numel(), hidden.shape().back(), entries, blocks,
               transpose_weight, labels.data<int64_t>(), first_ids.data<int64_t>(), ignore_index};
  }
};

std::vector<Tensor> gradients(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t ignore_index,
                              bool transpose_weight, bool mean, bool hidden_gradient, bool weight_gradient) {
  check_defined(kWithBackward, {{"hidden", hidden}});
  const Tensor first_ids = paddle::zeros({1}, DataType::INT64, hidden.place());
  const Arguments given(hidden, weight, labels, first_ids, ignore_index, kVocabularyOfWeight, transpose_weight);
  if (hidden.dtype() != DataType::FLOAT32)
    refuse(kWithBackward, "hidden is " + text(hidden.dtype()) + "; accepted: float32. Use pf_linear_cross_entropy.");
  const HostCall call(kWithBackward, {hidden, weight});
  const int64_t *label = given.problem.labels, *end = label + given.problem.tokens;
  const int64_t counted = given.problem.tokens - std::count(label, end, ignore_index);
  const float scale = mean && counted > 0 ? 1.0f / static_cast<float>(counted) : 1.0f;
  Tensor losses = paddle::empty(labels.shape(), DataType::FLOAT32, hidden.place());
  Tensor dhidden = empty_if(hidden_gradient, hidden), dweight = empty_if(weight_gradient, weight);
  kernels::linear_cross_entropy_gradients(given.problem, given.hidden.data<float>(), given.weight.data<float>(), scale,
                                          losses.data<float>(), hidden_gradient ? dhidden.data<float>() : nullptr,
                                          weight_gradient ? dweight.data<float>() : nullptr);
  return {losses, dhidden, dweight};
}

Shape statistics_shape(Shape hidden, const Shape& first_ids) {
  hidden.back() = first_ids[0];
  return hidden;
}

std::vector<Tensor> forward(const Tensor& hidden, const Tensor& weight, const Tensor& labels, const Tensor& first_ids,
                            int64_t ignore_index, int64_t vocabulary, bool transpose_weight, bool /*hidden_gradient*/,
                            bool /*weight_gradient*/) {
  const Arguments given(hidden, weight, labels, first_ids, ignore_index, vocabulary, transpose_weight);
  const HostCall call(kOp, {hidden, weight});
  const Shape shape = statistics_shape(hidden.shape(), first_ids.shape());
  Tensor lse = paddle::empty(shape, DataType::FLOAT32, hidden.place());
  Tensor target = paddle::empty(shape, DataType::FLOAT32, hidden.place());
  kernels::linear_cross_entropy_forward(given.problem, given.hidden.data(), given.weight.data(), lse.data<float>(),
                                        target.data<float>());
  return {lse, target};
}

std::vector<Tensor> backward(const Tensor& hidden, const Tensor& weight, const Tensor& labels, const Tensor& first_ids,
                             const Tensor& lse, const Tensor& dlse, const Tensor& dtarget, int64_t ignore_index,
                             int64_t vocabulary, bool transpose_weight, bool hidden_gradient,
                             bool weight_gradient) {
  const Arguments given(hidden, weight, labels, first_ids, ignore_index, vocabulary, transpose_weight);
  if (!dlse.defined() || !dtarget.defined())
    refuse(kOp, "the loss depends on only one of lse and target, but their gradients are computed together. Use both.");
  check_places(kOp, {{"hidden", hidden}, {"lse", lse}});
  check_gradient(kOp, {"the gradient of lse", dlse}, {"lse", lse}, lse.shape());
  check_gradient(kOp, {"the gradient of target", dtarget}, {"lse", lse}, lse.shape());
  const HostCall call("pf_linear_cross_entropy_grad", {hidden, weight});
  const Tensor statistics = dense(lse), lse_gradient = dense(dlse), target_gradient = dense(dtarget);
  Tensor dhidden = empty_if(hidden_gradient, hidden), dweight = empty_if(weight_gradient, weight);
  if (hidden_gradient || weight_gradient)
    kernels::linear_cross_entropy_backward(given.problem, given.hidden.data(), given.weight.data(),
                                           statistics.data<float>(), lse_gradient.data<float>(),
                                           target_gradient.data<float>(), hidden_gradient ? dhidden.data() : nullptr,
                                           weight_gradient ? dweight.data() : nullptr);
  return {dhidden, dweight};
}

// Paddle 3.3.1 terminates the process if this throws while a program is captured, so invalid inputs are rejected at
// run time.
std::vector<Shape> infer_shapes(const Shape& hidden, const Shape& /*weight*/, const Shape& /*labels*/,
                                const Shape& first_ids, int64_t /*ignore_index*/, int64_t /*vocabulary*/,
                                bool /*transpose_weight*/, bool /*hidden_gradient*/, bool /*weight_gradient*/) {
  if (hidden.empty() || first_ids.empty()) return {hidden, hidden};
  const Shape shape = statistics_shape(hidden, first_ids);
  return {shape, shape};
}
std::vector<DataType> infer_dtypes(const DataType& /*hidden*/, const DataType& /*weight*/, const DataType& /*labels*/,
                                   const DataType& /*first_ids*/) {
  return {DataType::FLOAT32, DataType::FLOAT32};
}

std::vector<Shape> infer_gradients_shapes(const Shape& hidden, const Shape& weight, const Shape& labels,
                                          int64_t /*ignore_index*/, bool /*transpose_weight*/, bool /*mean*/,
                                          bool hidden_gradient, bool weight_gradient) {
  return {labels, hidden_gradient ? hidden : Shape{0}, weight_gradient ? weight : Shape{0}};
}
std::vector<DataType> infer_gradients_dtypes(const DataType& hidden, const DataType& weight,
                                             const DataType& /*labels*/) {
  return {DataType::FLOAT32, hidden, weight};
}

std::vector<Shape> infer_gradient_shapes(const Shape& hidden, const Shape& weight, const Shape& /*labels*/,
                                         const Shape& /*first_ids*/, const Shape& /*lse*/, const Shape& /*dlse*/,
                                         const Shape& /*dtarget*/, int64_t /*ignore_index*/, int64_t /*vocabulary*/,
                                         bool /*transpose_weight*/, bool /*hidden_gradient*/,
                                         bool /*weight_gradient*/) {
  return {hidden, weight};
}
std::vector<DataType> infer_gradient_dtypes(const DataType& hidden, const DataType& weight, const DataType& /*labels*/,
                                            const DataType& /*first_ids*/, const DataType& /*lse*/,
                                            const DataType& /*dlse*/, const DataType& /*dtarget*/) {
  return {hidden, weight};
}

}  // namespace
}  // namespace paddle_fused::ops::linear_cross_entropy

PD_BUILD_OP(pf_linear_cross_entropy)
    .Inputs({"hidden", "weight", "labels", "first_ids"})
    .Outputs({"lse", "target"})
    .Attrs({"ignore_index: int64_t", "vocabulary: int64_t", "transpose_weight: bool", "hidden_gradient: bool",
            "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::linear_cross_entropy::forward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::linear_cross_entropy::infer_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::linear_cross_entropy::infer_dtypes));

PD_BUILD_GRAD_OP(pf_linear_cross_entropy)
    .Inputs({"hidden", "weight", "labels", "first_ids", "lse", paddle::Grad("lse"), paddle::Grad("target")})
    .Outputs({paddle::Grad("hidden"), paddle::Grad("weight")})
    .Attrs({"ignore_index: int64_t", "vocabulary: int64_t", "transpose_weight: bool", "hidden_gradient: bool",
            "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::linear_cross_entropy::backward))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::linear_cross_entropy::infer_gradient_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::linear_cross_entropy::infer_gradient_dtypes));

PF_FIRST_DERIVATIVE_ONLY(pf_linear_cross_entropy, "hidden", "lse");

PD_BUILD_OP(pf_linear_cross_entropy_with_backward)
    .Inputs({"hidden", "weight", "labels"})
    .Outputs({"losses", "dhidden", "dweight"})
    .Attrs({"ignore_index: int64_t", "transpose_weight: bool", "mean: bool", "hidden_gradient: bool",
            "weight_gradient: bool"})
    .SetKernelFn(PF_KERNEL(paddle_fused::ops::linear_cross_entropy::gradients))
    .SetInferShapeFn(PD_INFER_SHAPE(paddle_fused::ops::linear_cross_entropy::infer_gradients_shapes))
    .SetInferDtypeFn(PD_INFER_DTYPE(paddle_fused::ops::linear_cross_entropy::infer_gradients_dtypes));
