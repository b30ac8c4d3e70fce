// adam and adamw in bfloat16 and float16, with or without master weights, adamw in float32, and adam on sparse
// gradients: one pass over memory on all threads.
#include "kernels/optimizers/adam.h"

#include <algorithm>
#include <vector>

#include "paddle/phi/common/scalar.h"
#include "paddle/phi/kernels/adam_kernel.h"
#include "paddle/phi/kernels/adamw_kernel.h"
#include "element_type.h"
#include "phi_kernels/in_place.h"
#include "phi_kernels/optimizers/on_master_weights.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
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

// The single pass requires float32 state; 16-bit state uses the general path.
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

// The arrays from element `first` on.
kernels::AdamArrays from(kernels::AdamArrays arrays, int64_t first) {
  for (kernels::AdamArray* array : {&arrays.param, &arrays.grad, &arrays.moment1, &arrays.moment2, &arrays.moment2_max,
                                    &arrays.master})
    if (array->data) array->data = static_cast<char*>(array->data) + first * kernels::element_size(array->type);
  return arrays;
}

using Rows = std::vector<int64_t>;

// Updates the given rows of the parameter, or all rows.
void update(const CustomContext& context, const State& s, const Settings& settings, const Rows* rows = nullptr) {
  const auto array = [&](const DenseTensor& input, DenseTensor* output) {
    return kernels::AdamArray{in_place(context, input, output), element_type(input.dtype())};
  };
  kernels::AdamArrays arrays{};
  arrays.grad = {const_cast<void*>(s.grad.data()), element_type(s.grad.dtype())};
  arrays.param = array(s.param, s.param_out);
  arrays.moment1 = array(s.moment1, s.moment1_out);
  arrays.moment2 = array(s.moment2, s.moment2_out);
  if (settings.amsgrad) arrays.moment2_max = array(*s.moment2_max, s.moment2_max_out);
  if (settings.multi_precision) arrays.master = array(*s.master, s.master_out);

  const float beta1_pow = *s.beta1_pow.data<float>(), beta2_pow = *s.beta2_pow.data<float>();
  float* new_beta1_pow = nullptr;
  float* new_beta2_pow = nullptr;
  if (!settings.use_global_beta_pow) {
    new_beta1_pow = in_place<float>(context, s.beta1_pow, s.beta1_pow_out);
    new_beta2_pow = in_place<float>(context, s.beta2_pow, s.beta2_pow_out);
  }
  if (s.skip_update && *s.skip_update->data<bool>()) return;

  const kernels::AdamScalars scalars = kernels::adam_scalars(
      settings.beta1, settings.beta2, settings.epsilon, *s.learning_rate.data<float>() * settings.lr_ratio,
      settings.weight_decay, beta1_pow, beta2_pow, false);
  if (!rows) {
    kernels::adam(scalars, arrays, s.param.numel());
  } else {
    const int64_t width = s.param.numel() / s.param.dims()[0];
    for (int64_t row : *rows) kernels::adam(scalars, from(arrays, row * width), width);
  }
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
  if (!is_16_bit_float(param.dtype()))
    PADDLE_THROW(common::errors::InvalidArgument(
        "adamw: the parameter is float32, the gradient %s and the first moment %s; accepted with a float32 parameter: "
        "float32 state and a gradient of 16 or 32 bits. Cast them with tensor.astype.",
        phi::DataTypeToString(grad.dtype()), phi::DataTypeToString(moment1.dtype())));
  OnMasterWeights<Adamw>::run(context, param, grad, learning_rate, moment1, moment2, moment2_max, beta1_pow, beta2_pow,
                              master_param, skip_update, beta1, beta2, epsilon, lr_ratio, coeff, with_decay, lazy_mode,
                              min_row_size_to_use_multithread, multi_precision, use_global_beta_pow, amsgrad, param_out,
                              moment1_out, moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out,
                              master_param_out);
}

// The gradient as a float32 tensor of the parameter's shape, with repeated rows summed, and the rows that occur.
DenseTensor to_dense(const CustomContext& context, const phi::SelectedRows& grad, const DenseTensor& param,
                     Rows* rows) {
  DenseTensor values, dense;
  cast_tensor(context, grad.value(), phi::DataType::FLOAT32, &values);
  dense.Resize(param.dims());
  float* sums = context.Alloc<float>(&dense);
  std::fill_n(sums, dense.numel(), 0.0f);
  const int64_t width = param.numel() / param.dims()[0];
  const float* source = values.data<float>();
  for (int64_t row : grad.rows()) {
    for (int64_t i = 0; i < width; ++i) sums[row * width + i] += source[i];
    source += width;
  }
  rows->assign(grad.rows().begin(), grad.rows().end());
  std::sort(rows->begin(), rows->end());
  rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  return dense;
}

// Paddle's CPU kernel updates rows without a gradient, and overwrites the powers of beta before it reads them for the
// last time.
void adam_on_rows(const CustomContext& context, const DenseTensor& param, const phi::SelectedRows& grad,
                  const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
                  const optional<DenseTensor>& moment2_max, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
                  const optional<DenseTensor>& master_param, const optional<DenseTensor>& skip_update,
                  const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, bool lazy_mode, int64_t,
                  bool multi_precision, bool use_global_beta_pow, bool amsgrad, DenseTensor* param_out,
                  DenseTensor* moment1_out, DenseTensor* moment2_out, DenseTensor* moment2_max_out,
                  DenseTensor* beta1_pow_out, DenseTensor* beta2_pow_out, DenseTensor* master_param_out) {
  Rows rows;
  const DenseTensor dense = to_dense(context, grad, param, &rows);
  const State state{param,     dense,     learning_rate, moment1,     moment2,         moment2_max,
                    beta1_pow, beta2_pow, master_param,  skip_update, param_out,       moment1_out,
                    moment2_out, moment2_max_out, beta1_pow_out, beta2_pow_out, master_param_out};
  const Settings settings{beta1.to<float>(), beta2.to<float>(),    epsilon.to<float>(), 1.0f, 0.0f,
                          multi_precision,   use_global_beta_pow, amsgrad};
  if (!has_float32_state(state, settings))
    PADDLE_THROW(common::errors::InvalidArgument(
        "adam on sparse gradients: the moments are %s; accepted: float32 moments, powers of beta, learning rate and "
        "master weights. Use dense gradients (sparse=False) or float32 state.",
        phi::DataTypeToString(moment1.dtype())));
  update(context, state, settings, lazy_mode ? &rows : nullptr);
}

struct AdamOnRows {
  static constexpr char kName[] = "adam_dense_param_sparse_grad";
};

const OptimizerRegistration<Adam, &adam> adam_registration;
const OptimizerRegistration<Adamw, &adamw> adamw_registration({phi::DataType::BFLOAT16, phi::DataType::FLOAT16,
                                                               phi::DataType::FLOAT32});
const OptimizerRegistration<AdamOnRows, &adam_on_rows> adam_on_rows_registration({phi::DataType::BFLOAT16,
                                                                                  phi::DataType::FLOAT16,
                                                                                  phi::DataType::FLOAT32});

}  // namespace
}  // namespace virtual_npu
