#include <cmath>
#include <string>

#include "checks/checks.h"
#include "kernels/norms/dropout_add_norm.h"
#include "kernels/norms/rms_norm.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

constexpr float kEpsilon = 1e-5f;

struct Rows {
  int64_t count, width;
};
// Enough rows for a stable maximum of the noise floor.
constexpr Rows kShapes[] = {{61, 17}, {19, 33}, {33, 261}};

// The values from which the gradients of a row are computed.
template <typename Real>
struct Moments {
  Real mean = 0, rstd = 0;

  template <typename At>
  Moments(const At& at, int64_t width, bool centred) {
    for (int64_t i = 0; centred && i < width; ++i) mean += at(i);
    mean /= width;
    Real squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += (at(i) - mean) * (at(i) - mean);
    rstd = 1 / std::sqrt(squares / width + Real(kEpsilon));
  }
};

// The gradient of the normalized row at element i, from the gradients of all elements: (g - mean(g) - n mean(g n))
// rstd
template <typename Real, typename At, typename Gradient>
std::vector<Real> through_norm(const At& at, const Gradient& gradient, int64_t width, bool centred) {
  const Moments<Real> moments(at, width, centred);
  Real mean_g = 0, projected = 0;
  for (int64_t i = 0; i < width; ++i) {
    if (centred) mean_g += gradient(i) / width;
    projected += gradient(i) * (at(i) - moments.mean) * moments.rstd / width;
  }
  std::vector<Real> result;
  for (int64_t i = 0; i < width; ++i)
    result.push_back((gradient(i) - mean_g - (at(i) - moments.mean) * moments.rstd * projected) * moments.rstd);
  return result;
}

template <typename Arithmetic>
auto rms_norm(Arithmetic arithmetic, const Tensor& x, const Tensor& gamma, const Rows& rows, bool of_rstd) {
  using Real = typename Arithmetic::Real;
  std::vector<Real> y, rstd;
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto at = [&](int64_t i) { return static_cast<Real>(x[r * rows.width + i]); };
    rstd.push_back(Moments<Real>(at, rows.width, false).rstd);
    for (int64_t i = 0; i < rows.width; ++i)
      y.push_back(arithmetic.stored_as(gamma.type(), at(i) * rstd.back()) * static_cast<Real>(gamma[i]));
  }
  return of_rstd ? rstd : y;
}

void check_rms_norm(Report* report, ElementType type, ElementType gamma_type, const Rows& rows) {
  const int64_t count = rows.count * rows.width, width = rows.width;
  const Tensor x = Tensor::random(type, count), gamma = Tensor::random(gamma_type, width);
  const Tensor dy = Tensor::random(type, count), dsum = Tensor::random(type, count);
  Tensor y(type, count), rstd(ElementType::kFloat32, rows.count);
  report->problem(std::to_string(rows.count) + " rows of " + std::to_string(width) + ", gamma " +
                  type_name(gamma_type));
  rms_norm_forward(type, gamma_type, x.data(), gamma.data(), kEpsilon, rows.count, width, y.data(), rstd.floats());
  report->compare("y", y, [&](auto arithmetic) { return rms_norm(arithmetic, x, gamma, rows, false); });
  report->compare("rstd", rstd, [&](auto arithmetic) { return rms_norm(arithmetic, x, gamma, rows, true); });
  for (const bool with_dsum : {false, true}) {
    Tensor dx(type, count), dresidual(type, count), dgamma(ElementType::kFloat32, width);
    rms_norm_backward(type, gamma_type, dy.data(), x.data(), rstd.floats(), gamma.data(),
                      with_dsum ? dsum.data() : nullptr, rows.count, width, dx.data(),
                      with_dsum ? dresidual.data() : nullptr, dgamma.floats());
    report->compare("dx", dx, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> all;
      for (int64_t first = 0; first < count; first += width) {
        const auto row = through_norm<Real>(
            [&](int64_t i) { return static_cast<Real>(x[first + i]); },
            [&](int64_t i) { return static_cast<Real>(dy[first + i]) * static_cast<Real>(gamma[i]); }, width, false);
        for (int64_t i = 0; i < width; ++i)
          all.push_back(row[i] + (with_dsum ? static_cast<Real>(dsum[first + i]) : 0));
      }
      return all;
    });
    std::vector<double> copied;
    for (int64_t i = 0; i < count; ++i) copied.push_back(dx[i]);
    if (with_dsum) report->compare_bits("dresidual", dresidual, copied);
    report->compare("dgamma", dgamma, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(width, 0);
      const auto rstds = rms_norm(arithmetic, x, gamma, rows, true);
      for (int64_t i = 0; i < count; ++i)
        sums[i % width] += static_cast<Real>(dy[i]) *
                           arithmetic.stored_as(gamma_type, static_cast<Real>(x[i]) * rstds[i / width]);
      return sums;
    });
  }
}

void check_add_rms_norm(Report* report, ElementType type, const Rows& rows) {
  const int64_t count = rows.count * rows.width;
  const Tensor x = Tensor::random(type, count), residual = Tensor::random(type, count);
  const Tensor gamma = Tensor::random(type, rows.width);
  Tensor y(type, count), sum(type, count), rstd(ElementType::kFloat32, rows.count);
  report->problem(std::to_string(rows.count) + " rows of " + std::to_string(rows.width));
  add_rms_norm_forward(type, x.data(), residual.data(), gamma.data(), kEpsilon, rows.count, rows.width, y.data(),
                       sum.data(), rstd.floats());
  std::vector<double> truth;
  for (int64_t i = 0; i < count; ++i) truth.push_back(rounded(type, x[i] + residual[i]));
  report->compare_bits("sum", sum, truth);
  report->compare("y", y, [&](auto arithmetic) { return rms_norm(arithmetic, sum, gamma, rows, false); });
  report->compare("rstd", rstd, [&](auto arithmetic) { return rms_norm(arithmetic, sum, gamma, rows, true); });
}

// All inputs and outputs of a dropout_add_norm call.
class DropoutAddNormCheck {
 public:
  DropoutAddNormCheck(Report* report, NormKind norm, ElementType type, ElementType other_type, const Rows& rows,
                      bool everything)
      : report_(report),
        centred_(norm == NormKind::kLayerNorm),
        everything_(everything),
        rows_(rows),
        x0_(Tensor::random(type, rows.count * rows.width)),
        residual_(Tensor::random(other_type, x0_.count())),
        bias_(Tensor::random(other_type, rows.width)),
        rowscale_(Tensor::random(type, rows.count)),
        layerscale_(Tensor::random(type, rows.width)),
        weight_(Tensor::random(other_type, rows.width)),
        pre_(other_type, x0_.count()),
        mean_(ElementType::kFloat32, rows.count),
        rstd_(ElementType::kFloat32, rows.count),
        mask_(x0_.count()),
        problem_{norm, type, other_type, other_type, rows.count, rows.width, x0_.data(), nullptr, nullptr, nullptr,
                 nullptr, weight_.data(), kEpsilon} {
    if (!everything) return;
    problem_.residual = residual_.data();
    problem_.bias = bias_.data();
    problem_.rowscale = rowscale_.data();
    problem_.layerscale = layerscale_.data();
    problem_.keep_probability = 0.7;
    problem_.seed = 0x123456789abcdef;
    problem_.offset = 5;
  }

  void run() {
    report_->problem(std::to_string(rows_.count) + " rows of " + std::to_string(rows_.width) + ", weight " +
                     type_name(weight_.type()) + (everything_ ? ", everything" : ", only x0"));
    forward();
    backward();
  }

 private:
  template <typename Real>
  Real scale(int64_t row, int64_t i) const {
    return everything_ ? static_cast<Real>(rowscale_[row]) * static_cast<Real>(layerscale_[i]) : Real(1);
  }
  template <typename Real>
  Real factor(int64_t at) const {
    return mask_[at] ? static_cast<Real>(1 / problem_.keep_probability) : 0;
  }

  void forward() {
    Tensor out(x0_.type(), x0_.count());
    dropout_add_norm_forward(problem_, out.data(), pre_.data(), mask_.data(), mean_.floats(), rstd_.floats());
    report_->same_everywhere(mask_);
    report_->compare("pre", pre_, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> z;
      for (int64_t i = 0; i < x0_.count(); ++i) {
        const Real scaled = static_cast<Real>(x0_[i]) * scale<Real>(i / rows_.width, i % rows_.width);
        z.push_back(scaled * factor<Real>(i) + (everything_ ? static_cast<Real>(residual_[i]) : 0));
      }
      return z;
    });
    report_->compare("out", out, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> all;
      for_each_row<Real>([&](int64_t first, const Moments<Real>& moments) {
        for (int64_t i = 0; i < rows_.width; ++i) {
          const Real normal = (static_cast<Real>(pre_[first + i]) - moments.mean) * moments.rstd;
          all.push_back((centred_ ? normal : arithmetic.stored_as(weight_.type(), normal)) *
                            static_cast<Real>(weight_[i]) +
                        (everything_ ? static_cast<Real>(bias_[i]) : 0));
        }
      });
      return all;
    });
    const auto moments_of = [&](auto arithmetic, bool of_rstd) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> all;
      for_each_row<Real>(
          [&](int64_t, const Moments<Real>& moments) { all.push_back(of_rstd ? moments.rstd : moments.mean); });
      return all;
    };
    report_->compare("rstd", rstd_, [&](auto arithmetic) { return moments_of(arithmetic, true); });
    if (centred_) report_->compare("mean", mean_, [&](auto arithmetic) { return moments_of(arithmetic, false); });
  }

  template <typename Real, typename Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t first = 0; first < pre_.count(); first += rows_.width)
      visit(first, Moments<Real>([&](int64_t i) { return static_cast<Real>(pre_[first + i]); }, rows_.width, centred_));
  }

  void backward() {
    const ElementType type = x0_.type(), other_type = pre_.type();
    const Tensor out_grad = Tensor::random(type, x0_.count()), pre_grad = Tensor::random(other_type, x0_.count());
    Tensor dx0(type, x0_.count()), dresidual(other_type, x0_.count()), dweight(other_type, rows_.width),
        dbias(other_type, rows_.width), drowscale(type, rows_.count), dlayerscale(type, rows_.width);
    DropoutAddNormGradients gradients{dx0.data(), nullptr, dweight.data(), nullptr, nullptr, nullptr};
    if (everything_)
      gradients = {dx0.data(),   dresidual.data(), dweight.data(),
                   dbias.data(), drowscale.data(), dlayerscale.data()};
    dropout_add_norm_backward(problem_, out_grad.data(), everything_ ? pre_grad.data() : nullptr, pre_.data(),
                              mean_.floats(), rstd_.floats(), gradients);

    // The gradient of z for all elements.
    const auto of_pre = [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> dz;
      for (int64_t first = 0; first < pre_.count(); first += rows_.width) {
        const auto row = through_norm<Real>(
            [&](int64_t i) { return static_cast<Real>(pre_[first + i]); },
            [&](int64_t i) { return static_cast<Real>(out_grad[first + i]) * static_cast<Real>(weight_[i]); },
            rows_.width, centred_);
        for (int64_t i = 0; i < rows_.width; ++i)
          dz.push_back(row[i] + (everything_ ? static_cast<Real>(pre_grad[first + i]) : 0));
      }
      return dz;
    };
    // Sums term(row, column, dz) into element place(row, column).
    const auto summed = [&](auto arithmetic, const Tensor& result, const auto& place, const auto& term) {
      using Real = typename decltype(arithmetic)::Real;
      const std::vector<Real> dz = of_pre(arithmetic);
      std::vector<Real> sums(result.count(), 0);
      for (int64_t at = 0; at < x0_.count(); ++at)
        sums[place(at / rows_.width, at % rows_.width)] += term(at / rows_.width, at % rows_.width, dz[at]);
      return sums;
    };
    const auto compare = [&](const char* what, const Tensor& result, const auto& place, const auto& term) {
      report_->compare(what, result, [&](auto arithmetic) { return summed(arithmetic, result, place, term); });
    };
    const int64_t width = rows_.width;
    const auto of_element = [width](int64_t row, int64_t i) { return row * width + i; };
    const auto of_row = [](int64_t row, int64_t) { return row; };
    const auto of_column = [](int64_t, int64_t i) { return i; };
    compare("dx0", dx0, of_element, [&](int64_t row, int64_t i, auto dz) {
      return dz * factor<decltype(dz)>(row * width + i) * scale<decltype(dz)>(row, i);
    });
    report_->compare("dweight", dweight, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sums(width, 0);
      for_each_row<Real>([&](int64_t first, const Moments<Real>& moments) {
        for (int64_t i = 0; i < width; ++i) {
          const Real normal = (static_cast<Real>(pre_[first + i]) - moments.mean) * moments.rstd;
          sums[i] += static_cast<Real>(out_grad[first + i]) *
                     (centred_ ? normal : arithmetic.stored_as(weight_.type(), normal));
        }
      });
      return sums;
    });
    if (!everything_) return;
    compare("dresidual", dresidual, of_element, [](int64_t, int64_t, auto dz) { return dz; });
    compare("dbias", dbias, of_column, [&](int64_t row, int64_t i, auto dz) {
      return static_cast<decltype(dz)>(out_grad[row * width + i]);
    });
    compare("drowscale", drowscale, of_row, [&](int64_t row, int64_t i, auto dz) {
      using Real = decltype(dz);
      return dz * factor<Real>(row * width + i) * static_cast<Real>(x0_[row * width + i]) *
             static_cast<Real>(layerscale_[i]);
    });
    compare("dlayerscale", dlayerscale, of_column, [&](int64_t row, int64_t i, auto dz) {
      using Real = decltype(dz);
      return dz * factor<Real>(row * width + i) * static_cast<Real>(x0_[row * width + i]) *
             static_cast<Real>(rowscale_[row]);
    });
  }

  Report* report_;
  bool centred_, everything_;
  Rows rows_;
  Tensor x0_, residual_, bias_, rowscale_, layerscale_, weight_, pre_, mean_, rstd_;
  std::vector<uint8_t> mask_;
  DropoutAddNorm problem_;
};

}  // namespace

void check_rms_norm(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("rms_norm", type);
    for (const Rows& rows : kShapes) {
      check_rms_norm(report, type, type, rows);
      check_rms_norm(report, type, ElementType::kFloat32, rows);
    }
    report->kernel("add_rms_norm", type);
    for (const Rows& rows : kShapes) check_add_rms_norm(report, type, rows);
  }
}

void check_dropout_add_norm(Report* report) {
  for (const ElementType type : kTypes)
    for (const NormKind norm : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      report->kernel(norm == NormKind::kLayerNorm ? "dropout_add_norm (layer)" : "dropout_add_norm (rms)", type);
      for (const Rows& rows : kShapes)
        for (const ElementType other_type : {type, ElementType::kFloat32})
          for (const bool everything : {false, true})
            DropoutAddNormCheck(report, norm, type, other_type, rows, everything).run();
    }
}

}  // namespace paddle_fused::checks
