// adam and adamw in bfloat16 and float16, with or without master weights, in one pass over memory.
#include "kernels/adam.h"

#include <cmath>

#include "paddle/phi/common/scalar.h"
#include "paddle/phi/kernels/adam_kernel.h"
#include "paddle/phi/kernels/adamw_kernel.h"
#include "virtual_npu/phi_kernels/element_type.h"
#include "virtual_npu/phi_kernels/in_place.h"
#include "virtual_npu/phi_kernels/on_master_weights.h"

namespace virtual_npu {
namespace {

using paddle::optional;
using phi::CustomContext;
using phi::DenseTensor;
using phi::Scalar;

struct Adam {
  static constexpr char kName[] = "adam";
  using Signature = decltype(phi::AdamDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 15;
};
struct Adamw {
  static constexpr char kName[] = "adamw";
  using Signature = decltype(phi::AdamwDenseKernel<float, CustomContext>);
  static constexpr int kMaster = 8, kMultiPrecision = 18;
};

struct State {
  const DenseTensor &param, &grad, &learning_rate, &moment1, &moment2;
  const optional<DenseTensor>& moment2_max;
  const DenseTensor &beta1_pow, &beta2_pow;
  const optional<DenseTensor>&master, &skip_update;
  DenseTensor *param_out, *moment1_out, *moment2_out, *moment2_max_out, *beta1_pow_out, *beta2_pow_out, *master_out;
};

struct Settings {
  float beta1, beta2, epsilon, lr_ratio, weight_decay;
  bool multi_precision, use_global_beta_pow, amsgrad;
};

// The pass over memory takes float32 state; state of 16 bits goes the general way.
bool has_float32_state(const State& s, const Settings& settings) {
  const auto is_float32 = [](const DenseTensor& t) { return t.dtype() == phi::DataType::FLOAT32; };
  return is_float32(s.moment1) && is_float32(s.moment2) && is_float32(s.learning_rate) && is_float32(s.beta1_pow) &&
         is_float32(s.beta2_pow) && (!settings.amsgrad || (s.moment2_max && is_float32(*s.moment2_max))) &&
         (!settings.multi_precision || (s.master && is_float32(*s.master))) &&
         (is_float32(s.grad) || is_16_bit_float(s.grad.dtype()));
}

template <typename T = void>
T* in_place(const CustomContext& context, const DenseTensor& input, DenseTensor* output) {
  return static_cast<T*>(carry_over(context, input, output));
}

void update(const CustomContext& context, const State& s, const Settings& settings) {
  paddle_fused::kernels::AdamArrays arrays{};
  arrays.param_type = element_type(s.param.dtype());
  arrays.grad_type = element_type(s.grad.dtype());
  arrays.grad = s.grad.data();
  arrays.param = in_place(context, s.param, s.param_out);
  arrays.moment1 = in_place<float>(context, s.moment1, s.moment1_out);
  arrays.moment2 = in_place<float>(context, s.moment2, s.moment2_out);
  if (settings.amsgrad) arrays.moment2_max = in_place<float>(context, *s.moment2_max, s.moment2_max_out);
  if (settings.multi_precision) arrays.master = in_place<float>(context, *s.master, s.master_out);

  const float beta1_pow = *s.beta1_pow.data<float>(), beta2_pow = *s.beta2_pow.data<float>();
  float* new_beta1_pow = nullptr;
  float* new_beta2_pow = nullptr;
  if (!settings.use_global_beta_pow) {
    new_beta1_pow = in_place<float>(context, s.beta1_pow, s.beta1_pow_out);
    new_beta2_pow = in_place<float>(context, s.beta2_pow, s.beta2_pow_out);
  }
  if (s.skip_update && *s.skip_update->data<bool>()) return;

  const float learning_rate = *s.learning_rate.data<float>() * settings.lr_ratio;
  const float correction2 = std::sqrt(1.0f - beta2_pow);
  paddle_fused::kernels::AdamScalars scalars;
  scalars.beta1 = settings.beta1;
  scalars.beta2 = settings.beta2;
  scalars.step_size = learning_rate * correction2 / (1.0f - beta1_pow);
  scalars.epsilon = settings.epsilon * correction2;
  scalars.decay = 1.0f - learning_rate * settings.weight_decay;
  paddle_fused::kernels::adam(scalars, arrays, s.param.numel());
  if (!settings.use_global_beta_pow) {
    *new_beta1_pow = settings.beta1 * beta1_pow;
    *new_beta2_pow = settings.beta2 * beta2_pow;
  }
}

void adam(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
          const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
          const optional<DenseTensor>& moment2_max, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
          const optional<DenseTensor>& master_param, const optional<DenseTensor>& skip_update, const Scalar& beta1,
          const Scalar& beta2, const Scalar& epsilon, bool lazy_mode, int64_t min_row_size_to_use_multithread,
          bool multi_precision, bool use_global_beta_pow, bool amsgrad, DenseTensor* param_out,
          DenseTensor* moment1_out, DenseTensor* moment2_out, DenseTensor* moment2_max_out, DenseTensor* beta1_pow_out,
          DenseTensor* beta2_pow_out, DenseTensor* master_param_out) {
  const State state{param,     grad,      learning_rate, moment1,     moment2,         moment2_max,
                    beta1_pow, beta2_pow, master_param,  skip_update, param_out,       moment1_out,
                    moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out, master_param_out};
  const Settings settings{beta1.to<float>(), beta2.to<float>(),    epsilon.to<float>(), 1.0f, 0.0f,
                          multi_precision,   use_global_beta_pow, amsgrad};
  if (has_float32_state(state, settings)) return update(context, state, settings);
  OnMasterWeights<Adam>::run(context, param, grad, learning_rate, moment1, moment2, moment2_max, beta1_pow, beta2_pow,
                             master_param, skip_update, beta1, beta2, epsilon, lazy_mode,
                             min_row_size_to_use_multithread, multi_precision, use_global_beta_pow, amsgrad, param_out,
                             moment1_out, moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out, master_param_out);
}

void adamw(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
           const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
           const optional<DenseTensor>& moment2_max, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
           const optional<DenseTensor>& master_param, const optional<DenseTensor>& skip_update, const Scalar& beta1,
           const Scalar& beta2, const Scalar& epsilon, float lr_ratio, float coeff, bool with_decay, bool lazy_mode,
           int64_t min_row_size_to_use_multithread, bool multi_precision, bool use_global_beta_pow, bool amsgrad,
           DenseTensor* param_out, DenseTensor* moment1_out, DenseTensor* moment2_out, DenseTensor* moment2_max_out,
           DenseTensor* beta1_pow_out, DenseTensor* beta2_pow_out, DenseTensor* master_param_out) {
  const State state{param,     grad,      learning_rate, moment1,     moment2,         moment2_max,
                    beta1_pow, beta2_pow, master_param,  skip_update, param_out,       moment1_out,
                    moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out, master_param_out};
  const Settings settings{beta1.to<float>(),         beta2.to<float>(), epsilon.to<float>(),  lr_ratio,
                          with_decay ? coeff : 0.0f, multi_precision,   use_global_beta_pow, amsgrad};
  if (has_float32_state(state, settings)) return update(context, state, settings);
  OnMasterWeights<Adamw>::run(context, param, grad, learning_rate, moment1, moment2, moment2_max, beta1_pow, beta2_pow,
                              master_param, skip_update, beta1, beta2, epsilon, lr_ratio, coeff, with_decay, lazy_mode,
                              min_row_size_to_use_multithread, multi_precision, use_global_beta_pow, amsgrad, param_out,
                              moment1_out, moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out,
                              master_param_out);
}

const OptimizerRegistration<Adam, &adam> adam_registration;
const OptimizerRegistration<Adamw, &adamw> adamw_registration;

}  // namespace
}  // namespace virtual_npu
