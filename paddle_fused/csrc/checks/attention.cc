#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "checks/checks.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

struct Case {
  const char* name;
  int64_t segments, query_heads, kv_heads, head_dim, value_head_dim, query_len, kv_len;
  AttentionBand band = {};
  bool mask = false, bias = false, dropout = false;
  std::vector<int64_t> query_ends = {}, kv_ends = {};
};

constexpr AttentionBand kCausal{INT64_MAX, 0, 0};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"one token", 1, 1, 1, 8, 8, 1, 1});
  all.push_back({"full", 2, 2, 2, 19, 35, 67, 71});
  all.push_back({"causal, grouped heads", 2, 4, 2, 64, 64, 131, 131, kCausal});
  all.push_back({"causal, one head of keys", 1, 3, 1, 33, 17, 65, 130, kCausal});
  all.push_back({"a wide head", 1, 1, 1, 128, 128, 70, 66, kCausal});
  all.push_back({"a band", 1, 2, 1, 24, 24, 150, 190, {40, 13, 0}});
  all.push_back({"a prefix", 1, 2, 2, 24, 24, 75, 75, {INT64_MAX, 0, 30}});
  all.push_back({"queries without a key", 1, 1, 1, 16, 16, 80, 20, {5, 3, 0}});
  Case masked{"a mask", 2, 2, 1, 20, 20, 67, 73};
  masked.mask = true;
  all.push_back(masked);
  Case biased{"a bias", 2, 2, 2, 20, 20, 67, 73, kCausal};
  biased.bias = true;
  all.push_back(biased);
  Case dropped{"dropout", 2, 2, 1, 20, 80, 67, 73, kCausal};
  dropped.dropout = true;
  all.push_back(dropped);
  Case packed{"packed sequences", 4, 4, 2, 40, 40, 70, 81, kCausal};
  packed.query_ends = {3, 3, 73, 90};
  packed.kv_ends = {5, 9, 90, 91};
  all.push_back(packed);
  all.push_back({"queries that see only the prefix", 1, 1, 1, 16, 16, 160, 110, {5, 0, 10}});
  all.push_back({"a band far from the prefix", 1, 1, 1, 16, 16, 490, 500, {20, 0, 10}});
  all.push_back({"a narrow head", 1, 1, 1, 1, 1, 40, 40, kCausal});
  return all;
}

// One case: its tensors, the results of the kernels, and the formulas.
class AttentionCheck {
 public:
  AttentionCheck(Report* report, ElementType type, const Case& c)
      : report_(report),
        c_(c),
        query_tokens_(c.query_ends.empty() ? c.segments * c.query_len : c.query_ends.back()),
        kv_tokens_(c.kv_ends.empty() ? c.segments * c.kv_len : c.kv_ends.back()),
        query_(Tensor::random(type, query_tokens_ * c.query_heads * c.head_dim)),
        key_(Tensor::random(type, kv_tokens_ * c.kv_heads * c.head_dim)),
        value_(Tensor::random(type, kv_tokens_ * c.kv_heads * c.value_head_dim)),
        out_grad_(Tensor::random(type, query_tokens_ * c.query_heads * c.value_head_dim)),
        bias_(Tensor::random(type, c.query_heads * c.query_len * c.kv_len)),
        out_(type, out_grad_.count()),
        max_(ElementType::kFloat32, query_tokens_ * c.query_heads),
        sum_(ElementType::kFloat32, query_tokens_ * c.query_heads) {
    problem_.type = type;
    problem_.segments = c.segments;
    problem_.query_heads = c.query_heads;
    problem_.kv_heads = c.kv_heads;
    problem_.head_dim = c.head_dim;
    problem_.value_head_dim = c.value_head_dim;
    problem_.query_len = c.query_len;
    problem_.kv_len = c.kv_len;
    problem_.scale = static_cast<float>(2 / std::sqrt(c.head_dim));
    bands_.assign(c.segments, c.band);
    problem_.bands = bands_.data();
    if (!c.query_ends.empty()) {
      problem_.query_ends = c_.query_ends.data();
      problem_.kv_ends = c_.kv_ends.data();
    }
    if (c.mask) {
      for (int64_t i = 0; i < c.segments * c.query_len * c.kv_len; ++i) mask_.push_back(random_below(3) == 0);
      for (int64_t j = 0; j < c.kv_len; ++j) mask_[5 * c.kv_len + j] = 1;  // a fully masked query
      problem_.mask = {mask_.data(), c.query_len * c.kv_len, 0, c.kv_len};
    }
    // All segments share the bias, so its gradient is a sum.
    if (c.bias) problem_.bias = {bias_.data(), 0, c.query_len * c.kv_len, c.kv_len, 0.5f};
    if (c.dropout) {
      problem_.keep_probability = 0.75;
      problem_.seed = 0xfedcba987654321;
      problem_.offset = 3;
    }
  }

  void run() {
    report_->problem(c_.name);
    kept_.assign(query_tokens_ * c_.query_heads * c_.kv_len, 1);
    if (c_.dropout) find_kept();
    forward();
    backward();
  }

 private:
  // Stride between batch entries, or 0 for packed sequences.
  int64_t batch(int64_t tokens, int64_t row) const { return c_.query_ends.empty() ? tokens * row : 0; }
  AttentionInput input(const Tensor& tensor, int64_t tokens, int64_t heads, int64_t width) const {
    return {tensor.data(), batch(tokens, heads * width), heads * width, width};
  }
  static AttentionOutput output(Tensor* tensor, const AttentionInput& like) {
    return {tensor->data(), like.batch_stride, like.token_stride, like.head_stride};
  }
  AttentionInput query() const { return input(query_, c_.query_len, c_.query_heads, c_.head_dim); }
  AttentionInput key() const { return input(key_, c_.kv_len, c_.kv_heads, c_.head_dim); }
  AttentionInput value() const { return input(value_, c_.kv_len, c_.kv_heads, c_.value_head_dim); }
  AttentionInput like_out(const Tensor& tensor) const {
    return input(tensor, c_.query_len, c_.query_heads, c_.value_head_dim);
  }
  SoftmaxStatistics statistics() {
    return {max_.floats(), sum_.floats(), batch(c_.query_len, c_.query_heads), c_.query_heads, 1, 1};
  }

  // With V = identity, the output is P * R, which shows the elements that dropout kept.
  void find_kept() {
    Tensor identity(problem_.type, value_.count());
    for (int64_t i = 0; i < identity.count(); ++i) {
      const int64_t token = i / c_.value_head_dim / c_.kv_heads % c_.kv_len;
      identity.set(i, token == i % c_.value_head_dim);
    }
    Tensor out(problem_.type, out_.count());
    attention_forward(problem_, query(), key(), input(identity, c_.kv_len, c_.kv_heads, c_.value_head_dim),
                      output(&out, like_out(out)), statistics());
    for (int64_t row = 0; row < query_tokens_ * c_.query_heads; ++row)
      for (int64_t j = 0; j < c_.kv_len; ++j) kept_[row * c_.kv_len + j] = out[row * c_.value_head_dim + j] != 0;
    report_->same_everywhere(kept_);
  }

  // Calls visit(segment, head, global row number, query i, first key token, number of keys) for every row.
  template <typename Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t s = 0; s < c_.segments; ++s) {
      const bool packed = !c_.query_ends.empty();
      const int64_t first_query = packed ? (s ? c_.query_ends[s - 1] : 0) : s * c_.query_len;
      const int64_t end_query = packed ? c_.query_ends[s] : first_query + c_.query_len;
      const int64_t first_key = packed ? (s ? c_.kv_ends[s - 1] : 0) : s * c_.kv_len;
      const int64_t keys = packed ? c_.kv_ends[s] - first_key : c_.kv_len;
      for (int64_t token = first_query; token < end_query; ++token)
        for (int64_t head = 0; head < c_.query_heads; ++head)
          visit(Row{s, head, token * c_.query_heads + head, token - first_query, first_key, keys});
    }
  }
  struct Row {
    int64_t segment, head, number, query, first_key, keys;
  };

  int64_t kv_row(const Row& row, int64_t j) const {
    return (row.first_key + j) * c_.kv_heads + row.head / (c_.query_heads / c_.kv_heads);
  }
  bool in_band(const Row& row, int64_t j) const {
    return j < c_.band.prefix || ((c_.band.pre == INT64_MAX || j >= row.query - c_.band.pre) &&
                                  (c_.band.next == INT64_MAX || j <= row.query + c_.band.next));
  }
  bool hidden(const Row& row, int64_t j) const {
    return c_.mask && mask_[(row.segment * c_.query_len + row.query) * c_.kv_len + j];
  }
  int64_t bias_at(const Row& row, int64_t j) const { return (row.head * c_.query_len + row.query) * c_.kv_len + j; }

  template <typename Real>
  static Real dot(const Tensor& a, int64_t a_row, const Tensor& b, int64_t b_row, int64_t width) {
    Real sum = 0;
    for (int64_t d = 0; d < width; ++d)
      sum += static_cast<Real>(a[a_row * width + d]) * static_cast<Real>(b[b_row * width + d]);
    return sum;
  }

  // The scores of a row; -infinity outside the band.
  template <typename Real>
  std::vector<Real> scores(const Row& row) const {
    std::vector<Real> all;
    for (int64_t j = 0; j < row.keys; ++j) {
      Real score = -std::numeric_limits<Real>::infinity();
      if (in_band(row, j)) score = kHiddenScore;
      if (in_band(row, j) && !hidden(row, j))
        score = static_cast<Real>(problem_.scale) * dot<Real>(query_, row.number, key_, kv_row(row, j), c_.head_dim) +
                (c_.bias ? static_cast<Real>(problem_.bias.scale) * static_cast<Real>(bias_[bias_at(row, j)]) : 0);
      all.push_back(score);
    }
    return all;
  }
  template <typename Real>
  struct Softmax {
    Real max, sum = 0;
    std::vector<Real> p;

    explicit Softmax(const std::vector<Real>& scores) : max(kHiddenScore) {
      for (const Real score : scores) max = std::max(max, score);
      for (const Real score : scores) sum += std::exp(score - max);
      for (const Real score : scores) p.push_back(sum == 0 ? 0 : std::exp(score - max) / sum);
    }
  };
  template <typename Real>
  Real factor(const Row& row, int64_t j) const {
    return kept_[row.number * c_.kv_len + j] ? static_cast<Real>(1 / problem_.keep_probability) : 0;
  }

  void forward() {
    attention_forward(problem_, query(), key(), value(), output(&out_, like_out(out_)), statistics());
    const auto of_rows = [&](auto arithmetic, const auto& take) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> all(max_.count());
      for_each_row([&](const Row& row) { all[row.number] = take(Softmax<Real>(scores<Real>(row))); });
      return all;
    };
    report_->compare("max", max_, [&](auto a) { return of_rows(a, [](const auto& softmax) { return softmax.max; }); });
    report_->compare("sum", sum_, [&](auto a) { return of_rows(a, [](const auto& softmax) { return softmax.sum; }); });
    report_->compare("out", out_, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> out(out_.count(), 0);
      for_each_row([&](const Row& row) {
        const Softmax<Real> softmax(scores<Real>(row));
        for (int64_t j = 0; j < row.keys; ++j) {
          const Real weight = arithmetic.stored(softmax.p[j] * factor<Real>(row, j));
          for (int64_t d = 0; d < c_.value_head_dim; ++d)
            out[row.number * c_.value_head_dim + d] +=
                weight * static_cast<Real>(value_[kv_row(row, j) * c_.value_head_dim + d]);
        }
      });
      return out;
    });
  }

  template <typename Real>
  struct Gradients {
    std::vector<Real> query, key, value, bias;
  };

  template <typename Arithmetic>
  auto gradients(Arithmetic arithmetic) const {
    using Real = typename Arithmetic::Real;
    Gradients<Real> g{std::vector<Real>(query_.count(), 0), std::vector<Real>(key_.count(), 0),
                      std::vector<Real>(value_.count(), 0), std::vector<Real>(bias_.count(), 0)};
    const int64_t width = c_.head_dim, value_width = c_.value_head_dim;
    for_each_row([&](const Row& row) {
      const Softmax<Real> softmax(scores<Real>(row));
      const Real delta = dot<Real>(out_grad_, row.number, out_, row.number, value_width);
      for (int64_t j = 0; j < row.keys; ++j) {
        const int64_t kv = kv_row(row, j);
        const Real dp = factor<Real>(row, j) * dot<Real>(out_grad_, row.number, value_, kv, value_width);
        const Real seen = in_band(row, j) && !hidden(row, j) ? 1 : 0;
        const Real ds = arithmetic.stored(seen * softmax.p[j] * (dp - delta));
        const Real weight = arithmetic.stored(softmax.p[j] * factor<Real>(row, j)), scale = problem_.scale;
        for (int64_t d = 0; d < width; ++d) {
          g.query[row.number * width + d] += scale * ds * static_cast<Real>(key_[kv * width + d]);
          g.key[kv * width + d] += scale * ds * static_cast<Real>(query_[row.number * width + d]);
        }
        for (int64_t d = 0; d < value_width; ++d)
          g.value[kv * value_width + d] += weight * static_cast<Real>(out_grad_[row.number * value_width + d]);
        if (c_.bias) g.bias[bias_at(row, j)] += static_cast<Real>(problem_.bias.scale) * ds;
      }
    });
    return g;
  }

  void backward() {
    Tensor dq(problem_.type, query_.count()), dk(problem_.type, key_.count()), dv(problem_.type, value_.count());
    Tensor dbias(problem_.type, bias_.count());
    AttentionBiasGrad bias_grad;
    if (c_.bias) bias_grad = {dbias.data(), 0, problem_.bias.head_stride, problem_.bias.query_stride};
    attention_backward(problem_, query(), key(), value(), like_out(out_), like_out(out_grad_), statistics(),
                       output(&dq, query()), output(&dk, key()), output(&dv, value()), bias_grad);
    const Gradients<double> truth = gradients(Exact{});
    const Gradients<float> composed = gradients(Composed{problem_.type});
    report_->compare("dq", dq, truth.query, composed.query);
    report_->compare("dk", dk, truth.key, composed.key);
    report_->compare("dv", dv, truth.value, composed.value);
    if (c_.bias) report_->compare("dbias", dbias, truth.bias, composed.bias);
  }

  Report* report_;
  Case c_;
  int64_t query_tokens_, kv_tokens_;
  Tensor query_, key_, value_, out_grad_, bias_, out_, max_, sum_;
  std::vector<uint8_t> mask_, kept_;
  std::vector<AttentionBand> bands_;
  AttentionProblem problem_;
};

}  // namespace

void check_attention(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("attention", type);
    for (const Case& c : cases()) AttentionCheck(report, type, c).run();
  }
}

}  // namespace paddle_fused::checks
