#include "kernels/optimizers/adam.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/no_compute_guard.h"
#include "kernels/optimizers/adam_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

double exact_power(double beta, float power) {
  if (!(beta > 0 && beta < 1 && power > 0 && power < 1)) return power;
  const double steps = std::round(std::log(static_cast<double>(power)) / std::log(beta));
  const double exact = std::pow(beta, steps);
  // Two roundings per step: beta and the product.
  const double roundings = 2 * (steps + 1) * std::numeric_limits<float>::epsilon();
  return std::abs(exact - power) <= roundings * power ? exact : power;
}

AdamScalars adam_scalars(double beta1, double beta2, double epsilon, double learning_rate, double weight_decay,
                         double beta1_power, double beta2_power, bool maximize) {
  const double correction2 = std::sqrt(1 - beta2_power);
  AdamScalars scalars;
  scalars.beta1 = static_cast<float>(beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - beta1);
  scalars.beta2 = static_cast<float>(beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - beta2);
  scalars.step_size = static_cast<float>(learning_rate * correction2 / (1 - beta1_power));
  scalars.epsilon = static_cast<float>(epsilon * correction2);
  scalars.decay = static_cast<float>(learning_rate * weight_decay);
  scalars.maximize = maximize;
  return scalars;
}

void adam(const AdamScalars& scalars, const AdamArrays& arrays, int64_t count) {
  adam({{scalars, arrays, count}});
}

void adam(const std::vector<AdamTensor>& tensors) {
  if (compute_is_disabled()) return;
  const auto run = PF_SELECT_TABLE(adam_table).run;
  // Threads share the elements of all tensors evenly, regardless of the tensors' sizes.
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (const AdamTensor& tensor : tensors) ends.push_back(total += tensor.count);
  for_each_range(total, 1, [&](int64_t begin, int64_t end) {
    size_t t = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
    for (; begin < end; ++t) {
      const int64_t first = ends[t] - tensors[t].count, until = std::min(end, ends[t]);
      run(tensors[t].scalars, tensors[t].arrays, begin - first, until - first);
      begin = until;
    }
  });
}

}  // namespace paddle_fused::kernels
