// pf_adamw_(param, grad, learning_rate, moment1, moment2, moment2_max?, beta1_pow, beta2_pow, master?): one AdamW
// step in place, by kernels/adam. pf_adamw_many_ does the same for lists of tensors in one call. moment2_max is
// present with AMSGrad, master if a 16-bit parameter has float32 master weights. The powers of beta define the step,
// as in Paddle's optimizers. Betas close to 1 are passed as their distance from 1, because attributes are single
// precision.
#include "kernels/optimizers/adam.h"

#include "ops/operator.h"

namespace paddle_fused::ops::adamw {
namespace {

using OptionalTensor = paddle::optional<Tensor>;

constexpr char kOp[] = "pf_adamw_", kMany[] = "pf_adamw_many_";

// Checks an array of the update: on the parameter's device, with its shape, in a supported type.
void check_array(const Tensor& param, const char* name, const Tensor& array) {
  check_places(kOp, {{"param", param}, {name, array}});
  check_float(kOp, {name, array});
  if (array.shape() != param.shape())
    refuse(kOp, std::string(name) + " has shape " + text(array.shape()) + " and param " + text(param.shape()) +
                    "; accepted: the same shape.");
}

float scalar(const char* name, const Tensor& tensor) {
  check_defined(kOp, {{name, tensor}});
  const bool host = tensor.place().GetType() == phi::AllocationType::CPU;
  if (!host) check_places(kOp, {{name, tensor}});
  if (tensor.numel() != 1 || tensor.dtype() != DataType::FLOAT32)
    refuse(kOp, std::string(name) + " has shape " + text(tensor.shape()) + " and is " + text(tensor.dtype()) +
                    "; accepted: one element of float32.");
  return *tensor.data<float>();
}

kernels::AdamArray array_of(const Tensor& tensor) {
  return {const_cast<void*>(tensor.data()), element_type(tensor.dtype())};
}

// One parameter's step, checked and ready to run.
struct Step {
  kernels::AdamScalars scalars;
  float *beta1_pow, *beta2_pow;
  float next_beta1_pow, next_beta2_pow;
};

Step prepare(const Tensor& param, const Tensor& grad, const Tensor& learning_rate, const Tensor& moment1,
             const Tensor& moment2, const OptionalTensor& moment2_max, Tensor& beta1_pow, Tensor& beta2_pow,
             const OptionalTensor& master, float one_minus_beta1, float one_minus_beta2, float epsilon, float lr_ratio,
             float weight_decay, bool maximize) {
  check_array(param, "param", param);
  check_array(param, "grad", grad);
  check_array(param, "moment1", moment1);
  check_array(param, "moment2", moment2);
  if (moment2_max) check_array(param, "moment2_max", *moment2_max);
  if (master) check_array(param, "master", *master);

  const double beta1 = 1.0 - one_minus_beta1, beta2 = 1.0 - one_minus_beta2;
  const double power1 = kernels::exact_power(beta1, scalar("beta1_pow", beta1_pow));
  const double power2 = kernels::exact_power(beta2, scalar("beta2_pow", beta2_pow));
  const double rate = static_cast<double>(lr_ratio) * scalar("learning_rate", learning_rate);
  return {kernels::adam_scalars(beta1, beta2, epsilon, rate, weight_decay, power1, power2, maximize),
          beta1_pow.data<float>(), beta2_pow.data<float>(), static_cast<float>(power1 * beta1),
          static_cast<float>(power2 * beta2)};
}

void update(const Step& step, Tensor& param, const Tensor& grad, Tensor& moment1, Tensor& moment2,
            OptionalTensor& moment2_max, OptionalTensor& master) {
  const HostCall call(kOp, param);
  const Tensor gradient = dense(grad);
  kernels::AdamArrays arrays{};
  arrays.param = array_of(param);
  arrays.grad = array_of(gradient);
  arrays.moment1 = array_of(moment1);
  arrays.moment2 = array_of(moment2);
  if (moment2_max) arrays.moment2_max = array_of(*moment2_max);
  if (master) arrays.master = array_of(*master);
  if (param.numel() > 0) kernels::adam(step.scalars, arrays, param.numel());
  *step.beta1_pow = step.next_beta1_pow;
  *step.beta2_pow = step.next_beta2_pow;
}

void adamw(Tensor& param, const Tensor& grad, const Tensor& learning_rate, Tensor& moment1, Tensor& moment2,
           OptionalTensor& moment2_max, Tensor& beta1_pow, Tensor& beta2_pow, OptionalTensor& master, float one_minus_beta1,
           float one_minus_beta2, float epsilon, float lr_ratio, float weight_decay, bool maximize) {
  const Step step = prepare(param, grad, learning_rate, moment1, moment2, moment2_max, beta1_pow, beta2_pow, master,
                            one_minus_beta1, one_minus_beta2, epsilon, lr_ratio, weight_decay, maximize);
  update(step, param, grad, moment1, moment2, moment2_max, master);
}

using Tensors = std::vector<Tensor>;
using OptionalTensors = paddle::optional<Tensors>;

void adamw_many(Tensors& params, const Tensors& grads, const Tensor& learning_rate, Tensors& moments1,
                Tensors& moments2, OptionalTensors& moments2_max, Tensors& beta1_pows, Tensors& beta2_pows,
                OptionalTensors& masters, float one_minus_beta1, float one_minus_beta2, float epsilon, float lr_ratio,
                float weight_decay, bool maximize) {
  const auto check_count = [&](const char* name, const Tensors& list) {
    if (list.size() != params.size())
      refuse(kMany, std::string(name) + " has " + std::to_string(list.size()) + " tensors and params " +
                        std::to_string(params.size()) + "; accepted: equal numbers.");
  };
  check_count("grads", grads);
  check_count("moments1", moments1);
  check_count("moments2", moments2);
  if (moments2_max) check_count("moments2_max", *moments2_max);
  check_count("beta1_pows", beta1_pows);
  check_count("beta2_pows", beta2_pows);
  if (masters) check_count("masters", *masters);
  const auto element = [](const OptionalTensors& list, size_t i) {
    return list ? OptionalTensor((*list)[i]) : OptionalTensor();
  };
  std::vector<Step> steps;
  steps.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i)
    steps.push_back(prepare(params[i], grads[i], learning_rate, moments1[i], moments2[i], element(moments2_max, i),
                            beta1_pows[i], beta2_pows[i], element(masters, i), one_minus_beta1, one_minus_beta2, epsilon,
                            lr_ratio, weight_decay, maximize));
  // All tensors are valid. No tensor has been changed before this point.
  for (size_t i = 0; i < params.size(); ++i) {
    OptionalTensor largest = element(moments2_max, i), master = element(masters, i);
    update(steps[i], params[i], grads[i], moments1[i], moments2[i], largest, master);
  }
}

}  // namespace
}  // namespace paddle_fused::ops::adamw

PD_BUILD_OP(pf_adamw_)
    .Inputs({"param", "grad", "learning_rate", "moment1", "moment2", paddle::Optional("moment2_max"), "beta1_pow",
             "beta2_pow", paddle::Optional("master")})
    .Outputs({"param_out", "moment1_out", "moment2_out", paddle::Optional("moment2_max_out"), "beta1_pow_out",
              "beta2_pow_out", paddle::Optional("master_out")})
    .Attrs({"one_minus_beta1: float", "one_minus_beta2: float", "epsilon: float", "lr_ratio: float",
            "weight_decay: float", "maximize: bool"})
    .SetInplaceMap({{"param", "param_out"},
                    {"moment1", "moment1_out"},
                    {"moment2", "moment2_out"},
                    {paddle::Optional("moment2_max"), paddle::Optional("moment2_max_out")},
                    {"beta1_pow", "beta1_pow_out"},
                    {"beta2_pow", "beta2_pow_out"},
                    {paddle::Optional("master"), paddle::Optional("master_out")}})
    .SetKernelFn(PD_KERNEL(paddle_fused::ops::adamw::adamw));

PD_BUILD_OP(pf_adamw_many_)
    .Inputs({paddle::Vec("params"), paddle::Vec("grads"), "learning_rate", paddle::Vec("moments1"),
             paddle::Vec("moments2"), paddle::Optional(paddle::Vec("moments2_max")), paddle::Vec("beta1_pows"),
             paddle::Vec("beta2_pows"), paddle::Optional(paddle::Vec("masters"))})
    .Outputs({paddle::Vec("params_out"), paddle::Vec("moments1_out"), paddle::Vec("moments2_out"),
              paddle::Optional(paddle::Vec("moments2_max_out")), paddle::Vec("beta1_pows_out"),
              paddle::Vec("beta2_pows_out"), paddle::Optional(paddle::Vec("masters_out"))})
    .Attrs({"one_minus_beta1: float", "one_minus_beta2: float", "epsilon: float", "lr_ratio: float",
            "weight_decay: float", "maximize: bool"})
    .SetInplaceMap({{paddle::Vec("params"), paddle::Vec("params_out")},
                    {paddle::Vec("moments1"), paddle::Vec("moments1_out")},
                    {paddle::Vec("moments2"), paddle::Vec("moments2_out")},
                    {paddle::Optional(paddle::Vec("moments2_max")), paddle::Optional(paddle::Vec("moments2_max_out"))},
                    {paddle::Vec("beta1_pows"), paddle::Vec("beta1_pows_out")},
                    {paddle::Vec("beta2_pows"), paddle::Vec("beta2_pows_out")},
                    {paddle::Optional(paddle::Vec("masters")), paddle::Optional(paddle::Vec("masters_out"))}})
    .SetKernelFn(PD_KERNEL(paddle_fused::ops::adamw::adamw_many));
