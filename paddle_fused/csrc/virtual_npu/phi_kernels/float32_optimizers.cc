// momentum and adamw in float32 and float64. Paddle's CPU kernels ignore rescale_grad and lr_ratio; here the gradient
// and the learning rate are scaled first. The rest is done by CPU kernels of another name that do the same work.
#include <string>
#include <vector>

#include "paddle/phi/common/scalar.h"
#include "paddle/phi/common/type_traits.h"
#include "paddle/phi/kernels/adamw_kernel.h"
#include "paddle/phi/kernels/fused_adam_kernel.h"
#include "paddle/phi/kernels/merged_momentum_kernel.h"
#include "paddle/phi/kernels/momentum_kernel.h"
#include "virtual_npu/phi_kernels/in_place.h"
#include "virtual_npu/phi_kernels/on_master_weights.h"

namespace virtual_npu {
namespace {

using paddle::optional;
using phi::CustomContext;
using phi::DenseTensor;
using phi::Scalar;
using Inputs = std::vector<const DenseTensor*>;
using Outputs = std::vector<DenseTensor*>;

template <typename Signature>
struct Erased;
template <typename... Args>
struct Erased<void(const CustomContext&, Args...)> {
  using Function = void (*)(const phi::DeviceContext&, Args...);
};

// The kernel `name` for npu and T; `Signature` is the type of its declaration.
template <typename T, typename Signature>
auto npu_kernel(const CustomContext& context, const char* name) {
  return phi::KernelFactory::Instance()
      .SelectKernelOrThrowError(name, {phi::TransToPhiBackend(context.GetPlace()), phi::DataLayout::ALL_LAYOUT,
                                       phi::CppTypeToDataType<T>::Type()})
      .kernel.template GetVariadicKernelFn<typename Erased<Signature>::Function>();
}

// factor * tensor; the tensor itself where the factor is 1.
template <typename T>
DenseTensor scaled(const CustomContext& context, const DenseTensor& tensor, float factor) {
  if (factor == 1.0f) return tensor;
  DenseTensor result;
  result.Resize(tensor.dims());
  T* values = context.template Alloc<T>(&result);
  const T* source = tensor.data<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = source[i] * static_cast<T>(factor);
  return result;
}

template <typename T>
void momentum(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
              const DenseTensor& velocity, const DenseTensor& learning_rate, const optional<DenseTensor>& master_param,
              float mu, bool use_nesterov, const std::string& regularization_method, float regularization_coeff,
              bool multi_precision, float rescale_grad, DenseTensor* param_out, DenseTensor* velocity_out,
              DenseTensor* master_param_out) {
  using Signature = decltype(phi::MergedMomentumKernel<T, CustomContext>);
  static const auto merged_momentum = npu_kernel<T, Signature>(context, "merged_momentum");
  carry_over(context, param, param_out);
  carry_over(context, velocity, velocity_out);
  optional<Inputs> masters;
  Outputs masters_out;
  if (multi_precision && master_param) {
    carry_over(context, *master_param, master_param_out);
    masters = Inputs{master_param_out};
    masters_out.push_back(master_param_out);
  }
  const DenseTensor rescaled = scaled<T>(context, grad, rescale_grad);
  merged_momentum(context, {param_out}, {&rescaled}, {velocity_out}, {&learning_rate}, masters, mu, use_nesterov,
                  {regularization_method}, {regularization_coeff}, !masters_out.empty(), 1.0f, {param_out},
                  {velocity_out}, masters_out);
}

template <typename T>
void adamw(const CustomContext& context, const DenseTensor& param, const DenseTensor& grad,
           const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
           const optional<DenseTensor>& moment2_max, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
           const optional<DenseTensor>&, const optional<DenseTensor>& skip_update, const Scalar& beta1,
           const Scalar& beta2, const Scalar& epsilon, float lr_ratio, float coeff, bool with_decay, bool, int64_t,
           bool, bool use_global_beta_pow, bool amsgrad, DenseTensor* param_out, DenseTensor* moment1_out,
           DenseTensor* moment2_out, DenseTensor* moment2_max_out, DenseTensor* beta1_pow_out,
           DenseTensor* beta2_pow_out, DenseTensor*) {
  using Signature = decltype(phi::FusedAdamKernel<T, CustomContext>);
  static const auto fused_adam = npu_kernel<T, Signature>(context, "fused_adam");
  const DenseTensor own_rate = scaled<T>(context, learning_rate, lr_ratio);
  optional<Inputs> largest;
  if (moment2_max) largest = Inputs{moment2_max.get_ptr()};
  constexpr int kUnusedChunkSize = 0;
  fused_adam(context, {&param}, {&grad}, own_rate, {&moment1}, {&moment2}, largest, {&beta1_pow}, {&beta2_pow}, {},
             skip_update, beta1, beta2, epsilon, kUnusedChunkSize, coeff, with_decay, false, use_global_beta_pow,
             amsgrad, {param_out}, {moment1_out}, {moment2_out}, {moment2_max_out}, {beta1_pow_out}, {beta2_pow_out},
             {});
}

struct Momentum {
  static constexpr char kName[] = "momentum";
};
struct Adamw {
  static constexpr char kName[] = "adamw";
};
const OptimizerRegistration<Momentum, &momentum<float>> momentum_float32({phi::DataType::FLOAT32});
const OptimizerRegistration<Momentum, &momentum<double>> momentum_float64({phi::DataType::FLOAT64});
const OptimizerRegistration<Adamw, &adamw<float>> adamw_float32({phi::DataType::FLOAT32});
const OptimizerRegistration<Adamw, &adamw<double>> adamw_float64({phi::DataType::FLOAT64});

}  // namespace
}  // namespace virtual_npu
