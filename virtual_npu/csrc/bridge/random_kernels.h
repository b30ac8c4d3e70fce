// Kernels whose results differ between two computations.
#pragma once
#include <string>

namespace virtual_npu {

inline bool draws_random_numbers(const std::string& kernel) {
  for (const char* word : {"dropout", "bernoulli", "binomial", "dirichlet", "exponential", "gamma", "gaussian", "gumbel",
                           "multinomial", "normal_", "poisson", "rand", "rrelu", "uniform"})
    if (kernel.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace virtual_npu
