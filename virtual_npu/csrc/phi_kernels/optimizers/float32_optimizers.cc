// momentum and merged_momentum in float32 and float64, and adamw in float64. Paddle's CPU kernels for these ignore
// lr_ratio and rescale_grad (always, or with weight decay).
#include <string>
#include <vector>

#include "paddle/phi/common/scalar.h"
#include "paddle/phi/common/type_traits.h"
#include "phi_kernels/in_place.h"
#include "phi_kernels/npu_kernel.h"
#include "phi_kernels/optimizers/on_master_weights.h"

namespace virtual_npu {
namespace {

using paddle::optional;
using phi::CustomContext;
using phi::DenseTensor;
using phi::Scalar;
using Inputs = std::vector<const DenseTensor*>;
using Outputs = std::vector<DenseTensor*>;

struct MomentumSettings {
  float mu, rescale_grad, l2;
  bool use_nesterov;
};

float l2_of(const std::string& regularization_method, float regularization_coeff) {
  return regularization_method == "l2_decay" ? regularization_coeff : 0.0f;
}

// g = rescale_grad grad + l2 param;  v = mu v + g;  param = param - lr v, with Nesterov param - lr (g + mu v).
template <typename T>
void momentum_update(const CustomContext& context, const MomentumSettings& settings, const DenseTensor& param,
                     const DenseTensor& grad, const DenseTensor& velocity, const DenseTensor& learning_rate,
                     DenseTensor* param_out, DenseTensor* velocity_out) {
  T* p = static_cast<T*>(carry_over(context, param, param_out));
  T* v = static_cast<T*>(carry_over(context, velocity, velocity_out));
  const T* gradient = grad.data<T>();
  const T lr = *learning_rate.data<T>(), mu = static_cast<T>(settings.mu), l2 = static_cast<T>(settings.l2);
  const T rescale = static_cast<T>(settings.rescale_grad);
  for (int64_t i = 0; i < param.numel(); ++i) {
    const T g = rescale * gradient[i] + l2 * p[i];
    v[i] = mu * v[i] + g;
    p[i] -= lr * (settings.use_nesterov ? g + mu * v[i] : v[i]);
  }
}

// 32-bit and 64-bit parameters are their own master weights.
template <typename T>
void momentum(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
              const DenseTensor& velocity, const DenseTensor& learning_rate, const optional<DenseTensor>&, float mu,
              bool use_nesterov, const std::string& regularization_method, float regularization_coeff, bool,
              float rescale_grad, DenseTensor* param_out, DenseTensor* velocity_out, DenseTensor*) {
  const MomentumSettings settings{mu, rescale_grad, l2_of(regularization_method, regularization_coeff), use_nesterov};
  momentum_update<T>(context, settings, param, grad, velocity, learning_rate, param_out, velocity_out);
}

template <typename T>
void merged_momentum(const CustomContext& context, const Inputs& param, const Inputs& grad, const Inputs& velocity,
                     const Inputs& learning_rate, const optional<Inputs>&, float mu, bool use_nesterov,
                     const std::vector<std::string>& regularization_method,
                     const std::vector<float>& regularization_coeff, bool, float rescale_grad, Outputs param_out,
                     Outputs velocity_out, Outputs) {
  for (size_t i = 0; i < param.size(); ++i) {
    const float l2 = regularization_method.empty() ? 0.0f : l2_of(regularization_method[i], regularization_coeff[i]);
    momentum_update<T>(context, {mu, rescale_grad, l2, use_nesterov}, *param[i], *grad[i], *velocity[i],
                       *learning_rate[learning_rate.size() == 1 ? 0 : i], param_out[i], velocity_out[i]);
  }
}

// The CPU kernel of AdamW under its bridged name, with the learning rate of this parameter.
template <typename T>
void adamw(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
           const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
           const optional<DenseTensor>& moment2_max, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
           const optional<DenseTensor>&, const optional<DenseTensor>& skip_update, const Scalar& beta1,
           const Scalar& beta2, const Scalar& epsilon, float lr_ratio, float coeff, bool with_decay, bool, int64_t,
           bool, bool use_global_beta_pow, bool amsgrad, DenseTensor* param_out, DenseTensor* moment1_out,
           DenseTensor* moment2_out, DenseTensor* moment2_max_out, DenseTensor* beta1_pow_out,
           DenseTensor* beta2_pow_out, DenseTensor*) {
  using Function = void (*)(const phi::DeviceContext&, const Inputs&, const Inputs&, const DenseTensor&, const Inputs&,
                            const Inputs&, const optional<Inputs>&, const Inputs&, const Inputs&,
                            const optional<Inputs>&, const optional<DenseTensor>&, const Scalar&, const Scalar&,
                            const Scalar&, int, float, bool, bool, bool, bool, Outputs, Outputs, Outputs, Outputs,
                            Outputs, Outputs, Outputs);
  static const auto fused_adam = npu_kernel<Function>(context, "fused_adam", phi::CppTypeToDataType<T>::Type());
  DenseTensor own_rate = learning_rate;
  if (lr_ratio != 1.0f) {
    own_rate = DenseTensor();
    own_rate.Resize(learning_rate.dims());
    *context.template Alloc<T>(&own_rate) = *learning_rate.data<T>() * static_cast<T>(lr_ratio);
  }
  optional<Inputs> largest;
  if (moment2_max) largest = Inputs{moment2_max.get_ptr()};
  constexpr int kUnusedChunkSize = 0;
  fused_adam(context, {&param}, {&grad}, own_rate, {&moment1}, {&moment2}, largest, {&beta1_pow}, {&beta2_pow}, {},
             skip_update, beta1, beta2, epsilon, kUnusedChunkSize, coeff, with_decay, false, use_global_beta_pow,
             amsgrad, {param_out}, {moment1_out}, {moment2_out}, {moment2_max_out}, {beta1_pow_out}, {beta2_pow_out},
             {});
}

struct FullPrecisionMomentum {
  static constexpr char kName[] = "momentum";
};
struct FullPrecisionMergedMomentum {
  static constexpr char kName[] = "merged_momentum";
};
struct FullPrecisionAdamw {
  static constexpr char kName[] = "adamw";
};
const OptimizerRegistration<FullPrecisionMomentum, &momentum<float>> momentum_float32({phi::DataType::FLOAT32});
const OptimizerRegistration<FullPrecisionMomentum, &momentum<double>> momentum_float64({phi::DataType::FLOAT64});
const OptimizerRegistration<FullPrecisionMergedMomentum, &merged_momentum<float>> merged_float32(
    {phi::DataType::FLOAT32});
const OptimizerRegistration<FullPrecisionMergedMomentum, &merged_momentum<double>> merged_float64(
    {phi::DataType::FLOAT64});
const OptimizerRegistration<FullPrecisionAdamw, &adamw<double>> adamw_float64({phi::DataType::FLOAT64});

}  // namespace
}  // namespace virtual_npu
