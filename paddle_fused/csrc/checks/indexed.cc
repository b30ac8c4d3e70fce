#include <algorithm>
#include <string>

#include "checks/checks.h"
#include "kernels/elementwise/contiguous.h"
#include "kernels/indexing/embedding.h"
#include "kernels/indexing/moe.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

// Mixture of experts with top-2. The last permuted rows are dropped.
class MoeCheck {
 public:
  MoeCheck(Report* report, ElementType type, int64_t width)
      : report_(report),
        type_(type),
        shape_{23, 2, 41, width},
        tokens_(Tensor::random(type, shape_.tokens * width)),
        permuted_(type, shape_.kept * width),
        probs_(Tensor::random(ElementType::kFloat32, shape_.entries(), 0, 1)),
        place_(shape_.entries()),
        entry_at_(shape_.entries()) {}

  void run() {
    report_->problem("23 tokens of " + std::to_string(shape_.width));
    places();
    permute();
    unpermute(true);
    unpermute(false);
  }

 private:
  void places() {
    std::vector<int64_t> experts;
    for (int64_t i = 0; i < shape_.entries(); ++i) experts.push_back(random_below(5) * 3000);
    std::vector<int32_t> in_order(shape_.entries());
    for (int64_t i = 0; i < shape_.entries(); ++i) in_order[i] = static_cast<int32_t>(i);
    std::stable_sort(in_order.begin(), in_order.end(), [&](int32_t a, int32_t b) { return experts[a] < experts[b]; });
    report_->kernel("moe_places", type_);
    report_->require("the count", moe_places(experts.data(), shape_.entries(), place_.data()) == shape_.entries());
    report_->require("the inverse", moe_entries(place_.data(), shape_.entries(), entry_at_.data()) == shape_.entries());
    report_->require("the order", entry_at_ == in_order);
  }

  // The token element that is at an element of the permuted rows.
  int64_t token_element(int64_t i) const {
    return entry_at_[i / shape_.width] / shape_.top_k * shape_.width + i % shape_.width;
  }

  void permute() {
    moe_permute(type_, shape_, tokens_.data(), place_.data(), permuted_.data());
    std::vector<double> truth;
    for (int64_t i = 0; i < permuted_.count(); ++i) truth.push_back(tokens_[token_element(i)]);
    report_->kernel("moe_permute", type_);
    report_->compare_bits("permuted", permuted_, truth);
  }

  void unpermute(bool with_probs) {
    const Tensor dout = Tensor::random(type_, tokens_.count());
    Tensor out(type_, tokens_.count()), dpermuted(type_, permuted_.count());
    Tensor dprobs(ElementType::kFloat32, shape_.entries());
    moe_unpermute(type_, shape_, permuted_.data(), place_.data(), with_probs ? probs_.floats() : nullptr, out.data());
    moe_unpermute_backward(type_, shape_, dout.data(), with_probs ? permuted_.data() : nullptr, entry_at_.data(),
                           with_probs ? probs_.floats() : nullptr, dpermuted.data(),
                           with_probs ? dprobs.floats() : nullptr);
    report_->kernel(with_probs ? "moe_unpermute (probs)" : "moe_unpermute", type_);
    report_->compare("out", out, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(out.count(), 0);
      for (int64_t i = 0; i < permuted_.count(); ++i)
        sums[token_element(i)] += probability<Real>(i, with_probs) * static_cast<Real>(permuted_[i]);
      return sums;
    });
    report_->compare("dpermuted", dpermuted, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> all;
      for (int64_t i = 0; i < permuted_.count(); ++i)
        all.push_back(probability<Real>(i, with_probs) * static_cast<Real>(dout[token_element(i)]));
      return all;
    });
    if (!with_probs) return;
    report_->compare("dprobs", dprobs, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(shape_.entries(), 0);
      for (int64_t i = 0; i < permuted_.count(); ++i)
        sums[entry_at_[i / shape_.width]] += static_cast<Real>(dout[token_element(i)]) * static_cast<Real>(permuted_[i]);
      return sums;
    });
  }

  template <typename Real>
  Real probability(int64_t element, bool with_probs) const {
    return with_probs ? static_cast<Real>(probs_[entry_at_[element / shape_.width]]) : Real(1);
  }

  Report* report_;
  ElementType type_;
  MoeShape shape_;
  Tensor tokens_, permuted_, probs_;
  std::vector<int32_t> place_, entry_at_;
};

}  // namespace

void check_embedding(Report* report) {
  const EmbeddingShape shape{19, 37, 61};
  constexpr int64_t kPadding = 3;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < shape.count; ++i) ids.push_back(i % 7 ? random_below(shape.vocabulary) : kPadding);
  for (const ElementType type : kTypes) {
    report->kernel("embedding", type);
    report->problem("61 of 19 entries");
    const Tensor weight = Tensor::random(type, shape.vocabulary * shape.width);
    const Tensor dout = Tensor::random(type, shape.count * shape.width);
    Tensor out(type, dout.count()), dweight(type, weight.count());
    embedding_forward(type, shape, ids.data(), kPadding, weight.data(), out.data());
    embedding_backward(type, shape, ids.data(), kPadding, dout.data(), dweight.data());
    std::vector<double> truth;
    for (int64_t i = 0; i < out.count(); ++i) {
      const int64_t id = ids[i / shape.width];
      truth.push_back(id == kPadding ? 0 : weight[id * shape.width + i % shape.width]);
    }
    report->compare_bits("out", out, truth);
    report->compare("dweight", dweight, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(dweight.count(), 0);
      for (int64_t i = 0; i < dout.count(); ++i) {
        const int64_t id = ids[i / shape.width];
        if (id != kPadding) sums[id * shape.width + i % shape.width] += static_cast<Real>(dout[i]);
      }
      return sums;
    });
  }
}

// Views of 6000 elements: transposed matrices, slices, single elements, overlapping and reversed elements.
void check_make_dense(Report* report) {
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t first;
  };
  const View views[] = {{{71, 83}, {1, 71}, 0},          {{3, 45, 37}, {1, 120, 3}, 2}, {{3, 37, 45}, {1700, 1, 37}, 5},
                        {{9, 1, 5, 31}, {310, 7, 62, 1}, 0}, {{40, 13}, {130, 3}, 1},   {{50, 60}, {1, 0}, 5900},
                        {{50, 60}, {1, 1}, 5891},        {{41, 67}, {1, -80}, 5900},    {{29, 31}, {-31, -1}, 5999}};
  for (const ElementType type : kTypes) {
    const Tensor data = Tensor::random(type, 6000);
    report->kernel("make_contiguous", type);
    for (const View& view : views) {
      report->problem("a view of " + std::to_string(view.sizes.size()) + " dimensions");
      std::vector<double> truth;
      int64_t count = 1;
      for (const int64_t size : view.sizes) count *= size;
      for (int64_t i = 0; i < count; ++i) {
        int64_t place = view.first, rest = i;
        for (size_t d = view.sizes.size(); d-- > 0; rest /= view.sizes[d])
          place += rest % view.sizes[d] * view.strides[d];
        truth.push_back(data[place]);
      }
      Tensor out(type, count);
      const int64_t size = element_size(type);
      make_contiguous(static_cast<const char*>(data.data()) + view.first * size, view.sizes, view.strides, size, out.data());
      report->compare_bits("out", out, truth);
    }
  }
}

void check_moe(Report* report) {
  for (const ElementType type : kTypes)
    for (const int64_t width : {1, 77, 515}) MoeCheck(report, type, width).run();
}

}  // namespace paddle_fused::checks
