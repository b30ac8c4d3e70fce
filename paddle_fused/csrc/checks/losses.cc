#include <algorithm>
#include <cmath>
#include <string>

#include "checks/checks.h"
#include "kernels/losses/cross_entropy.h"
#include "kernels/losses/linear_cross_entropy.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

constexpr int64_t kIgnored = -100;

// log(sum of exp), computed relative to the maximum.
template <typename Real>
Real log_sum_exp(const std::vector<Real>& x) {
  const Real largest = *std::max_element(x.begin(), x.end());
  Real total = 0;
  for (const Real value : x) total += std::exp(value - largest);
  return largest + std::log(total);
}

class CrossEntropyCheck {
 public:
  CrossEntropyCheck(Report* report, ElementType type, int64_t classes, int64_t inner, bool use_softmax, bool soft)
      : report_(report),
        x_(Tensor::random(type, kOuter * classes * inner, use_softmax ? -4 : 0.05, use_softmax ? 4 : 1)),
        soft_(Tensor::random(type, x_.count(), 0, 1)),
        dloss_(Tensor::random(type, kOuter * inner)),
        softmax_(type, x_.count()) {
    for (int64_t i = 0; i < dloss_.count(); ++i) labels_.push_back(random_below(classes));
    labels_[0] = kIgnored;
    problem_ = {type, kOuter, classes, inner, use_softmax, soft ? nullptr : labels_.data(),
                soft ? soft_.data() : nullptr, kIgnored};
  }

  void run() {
    report_->problem(std::to_string(problem_.classes) + " classes, " + std::to_string(problem_.inner) + " apart" +
                     (problem_.use_softmax ? ", softmax" : ", probabilities") +
                     (problem_.hard_labels ? ", hard labels" : ", soft labels"));
    Tensor loss(problem_.type, dloss_.count()), dx(problem_.type, x_.count());
    cross_entropy_forward(problem_, x_.data(), softmax_.data(), loss.data());
    cross_entropy_backward(problem_, softmax_.data(), dloss_.data(), dx.data());
    report_->compare("softmax", softmax_, [&](auto a) { return probabilities<typename decltype(a)::Real>(); });
    report_->compare("loss", loss, [&](auto a) { return losses<typename decltype(a)::Real>(); });
    report_->compare("dx", dx, [&](auto a) { return gradient<typename decltype(a)::Real>(); });
  }

 private:
  static constexpr int64_t kOuter = 3;

  int64_t row_of(int64_t i) const { return i / problem_.inner / problem_.classes * problem_.inner + i % problem_.inner; }
  int64_t class_of(int64_t i) const { return i / problem_.inner % problem_.classes; }
  int64_t at(int64_t row, int64_t c) const {
    return (row / problem_.inner * problem_.classes + c) * problem_.inner + row % problem_.inner;
  }

  // log p for all elements.
  template <typename Real>
  std::vector<Real> logarithms() const {
    std::vector<Real> all(x_.count());
    for (int64_t row = 0; row < dloss_.count(); ++row) {
      std::vector<Real> values;
      for (int64_t c = 0; c < problem_.classes; ++c) values.push_back(x_[at(row, c)]);
      const Real total = problem_.use_softmax ? log_sum_exp(values) : 0;
      for (int64_t c = 0; c < problem_.classes; ++c)
        all[at(row, c)] = problem_.use_softmax ? values[c] - total : std::log(values[c]);
    }
    return all;
  }

  template <typename Real>
  std::vector<Real> probabilities() const {
    std::vector<Real> all = logarithms<Real>();
    for (Real& value : all) value = std::exp(value);
    return all;
  }

  template <typename Real>
  std::vector<Real> losses() const {
    const std::vector<Real> log_p = logarithms<Real>();
    std::vector<Real> all(dloss_.count(), 0);
    for (int64_t i = 0; i < x_.count(); ++i)
      if (!problem_.hard_labels)
        all[row_of(i)] -= static_cast<Real>(soft_[i]) * log_p[i];
      else if (labels_[row_of(i)] == class_of(i))
        all[row_of(i)] = -log_p[i];
    return all;
  }

  template <typename Real>
  std::vector<Real> gradient() const {
    std::vector<Real> all;
    for (int64_t i = 0; i < x_.count(); ++i) {
      const int64_t row = row_of(i);
      const Real p = softmax_[i], g = dloss_[row];
      const Real label = problem_.hard_labels ? labels_[row] == class_of(i) : static_cast<Real>(soft_[i]);
      const bool ignored = problem_.hard_labels && labels_[row] == kIgnored;
      all.push_back(ignored ? 0 : problem_.use_softmax ? (p - label) * g : -label / p * g);
    }
    return all;
  }

  Report* report_;
  Tensor x_, soft_, dloss_, softmax_;
  std::vector<int64_t> labels_;
  CrossEntropyProblem problem_;
};

class LinearCrossEntropyCheck {
 public:
  LinearCrossEntropyCheck(Report* report, ElementType type, bool transpose_weight)
      : report_(report),
        hidden_(Tensor::random(type, kTokens * kWidth)),
        weight_(Tensor::random(type, kWidth * kVocabulary)),
        dlse_(Tensor::random(ElementType::kFloat32, kTokens * kBlocks)),
        dtarget_(Tensor::random(ElementType::kFloat32, kTokens * kBlocks)),
        lse_(ElementType::kFloat32, kTokens * kBlocks) {
    for (int64_t t = 0; t < kTokens; ++t) labels_.push_back(random_below(kVocabulary));
    labels_[1] = kIgnored;
    problem_ = {type, kTokens, kWidth, kVocabulary, kBlocks, transpose_weight, labels_.data(), kFirstIds, kIgnored};
  }

  void run() {
    report_->problem(problem_.transpose_weight ? "the transposed weight" : "the weight");
    Tensor target(ElementType::kFloat32, lse_.count());
    linear_cross_entropy_forward(problem_, hidden_.data(), weight_.data(), lse_.floats(), target.floats());
    report_->compare("lse", lse_, [&](auto a) { return statistics<typename decltype(a)::Real>(false); });
    report_->compare("target", target, [&](auto a) { return statistics<typename decltype(a)::Real>(true); });
    Tensor dhidden(problem_.type, hidden_.count()), dweight(problem_.type, weight_.count());
    linear_cross_entropy_backward(problem_, hidden_.data(), weight_.data(), lse_.floats(), dlse_.floats(),
                                  dtarget_.floats(), dhidden.data(), dweight.data());
    report_->compare("dhidden", dhidden, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(hidden_.count(), 0);
      for_each_gradient(arithmetic, [&](int64_t t, int64_t v, Real g) {
        for (int64_t i = 0; i < kWidth; ++i) sums[t * kWidth + i] += g * static_cast<Real>(weight_[weight_at(i, v)]);
      });
      return sums;
    });
    report_->compare("dweight", dweight, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(weight_.count(), 0);
      for_each_gradient(arithmetic, [&](int64_t t, int64_t v, Real g) {
        for (int64_t i = 0; i < kWidth; ++i) sums[weight_at(i, v)] += g * static_cast<Real>(hidden_[t * kWidth + i]);
      });
      return sums;
    });
  }

 private:
  static constexpr int64_t kTokens = 19, kWidth = 37, kVocabulary = 402, kBlocks = 2, kBlock = kVocabulary / kBlocks;
  static constexpr int64_t kFirstIds[kBlocks] = {0, kBlock};

  int64_t weight_at(int64_t i, int64_t v) const {
    return problem_.transpose_weight ? v * kWidth + i : i * kVocabulary + v;
  }

  template <typename Real>
  Real logit(int64_t t, int64_t v) const {
    Real sum = 0;
    for (int64_t i = 0; i < kWidth; ++i)
      sum += static_cast<Real>(hidden_[t * kWidth + i]) * static_cast<Real>(weight_[weight_at(i, v)]);
    return sum;
  }

  template <typename Real>
  std::vector<Real> statistics(bool of_target) const {
    std::vector<Real> all(kTokens * kBlocks, 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      if (labels_[t] == kIgnored) continue;
      for (int64_t block = 0; block < kBlocks; ++block) {
        std::vector<Real> logits;
        for (int64_t v = block * kBlock; v < (block + 1) * kBlock; ++v) logits.push_back(logit<Real>(t, v));
        const bool here = labels_[t] / kBlock == block;
        if (!of_target) all[t * kBlocks + block] = log_sum_exp(logits);
        if (of_target && here) all[t * kBlocks + block] = logits[labels_[t] % kBlock];
      }
    }
    return all;
  }

  // Calls visit(token, entry, gradient of the logit), where plain operators would store the gradient.
  template <typename Arithmetic, typename Visit>
  void for_each_gradient(Arithmetic arithmetic, const Visit& visit) const {
    using Real = typename Arithmetic::Real;
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t v = 0; v < kVocabulary && labels_[t] != kIgnored; ++v) {
        const int64_t statistic = t * kBlocks + v / kBlock;
        const Real lse = lse_[statistic], dlse = dlse_[statistic], dtarget = dtarget_[statistic];
        const Real g = std::exp(logit<Real>(t, v) - lse) * dlse + (labels_[t] == v ? dtarget : 0);
        visit(t, v, arithmetic.stored(g));
      }
  }

  Report* report_;
  Tensor hidden_, weight_, dlse_, dtarget_, lse_;
  std::vector<int64_t> labels_;
  LinearCrossEntropyProblem problem_;
};

}  // namespace

void check_cross_entropy(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("cross_entropy", type);
    for (const int64_t classes : {1, 37, 531})
      for (const int64_t inner : {1, 5})
        for (const bool use_softmax : {true, false})
          for (const bool soft : {false, true})
            CrossEntropyCheck(report, type, classes, inner, use_softmax, soft).run();
  }
}

void check_linear_cross_entropy(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("linear_cross_entropy", type);
    for (const bool transpose_weight : {false, true}) LinearCrossEntropyCheck(report, type, transpose_weight).run();
  }
}

}  // namespace paddle_fused::checks
