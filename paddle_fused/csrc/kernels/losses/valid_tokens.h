// The tokens of a loss whose label is not ignored. For host code, never for simd/.
#pragma once
#include <cstring>
#include <vector>

#include "kernels/losses/linear_cross_entropy.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

class ValidTokens {
 public:
  ValidTokens(const LinearCrossEntropyProblem& problem, const void* hidden)
      : hidden_(static_cast<const char*>(hidden)), row_bytes_(problem.width * element_size(problem.type)) {
    for (int64_t t = 0; t < problem.tokens; ++t)
      if (problem.labels[t] != problem.ignore_index) tokens_.push_back(t);
    if (!all_count(problem)) gather(problem.width);
  }

  int64_t count() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t token(int64_t row) const { return tokens_[row]; }
  bool all_count(const LinearCrossEntropyProblem& problem) const { return count() == problem.tokens; }
  // The rows of hidden of these tokens, contiguous.
  const char* hidden() const { return hidden_; }

 private:
  void gather(int64_t width) {
    gathered_.resize(count() * row_bytes_);
    for_each_range(count(), width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(gathered_.data() + r * row_bytes_, hidden_ + tokens_[r] * row_bytes_, row_bytes_);
    });
    hidden_ = gathered_.data();
  }

  const char* hidden_;
  int64_t row_bytes_;
  std::vector<int64_t> tokens_;
  std::vector<char> gathered_;
};

}  // namespace paddle_fused::kernels
