#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "checks/checks.h"
#include "kernels/attention/rotary.h"
#include "kernels/elementwise/cast.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/elementwise/gated.h"
#include "kernels/elementwise/gelu.h"
#include "kernels/optimizers/adam.h"
#include "kernels/optimizers/squared_norm.h"
#include "kernels/optimizers/unscale.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Numbers of all magnitudes, rounding ties, signed zeros, subnormals, infinities.
Tensor special_numbers(ElementType type) {
  Tensor x = Tensor::random(type, 331);
  int64_t i = 0;
  for (const double value : {0.0, -0.0, kInfinity, -kInfinity, 65504.0, 65519.0, 65520.0, 3e38, -3e38, 1e-8})
    x.set(i++, value);
  // Below the smallest normal half, between two subnormal halves, and below all of them.
  for (int power = -30; power < -10; ++power) x.set(i++, -1.5 * std::ldexp(1, power));
  // Halfway between two 16-bit numbers, above an even and above an odd one.
  for (const int bits : {8, 11})
    for (int step = 1; step < 40; step += 2) x.set(i++, 1 + std::ldexp(step, -bits));
  return x;
}

// gelu(x) / x, plus `derivatives` times x times its derivative.
template <GeluForm form, typename Real>
Real gelu_share(Real x, int derivatives) {
  if (form == GeluForm::kNormal)
    return (1 + std::erf(x * Real(M_SQRT1_2))) / 2 +
           derivatives * x * std::exp(-x * x / 2) * Real(M_SQRT1_2 * M_2_SQRTPI / 2);
  const Real slope = M_SQRT2 * M_2_SQRTPI / 2, cubic = 0.044715, t = std::tanh(slope * (x + cubic * x * x * x));
  return (1 + t + derivatives * x * (1 - t * t) * slope * (1 + 3 * cubic * x * x)) / 2;
}

// The same for silu.
template <typename Real>
Real silu_share(Real x, int derivatives) {
  const Real s = 1 / (1 + std::exp(-x));
  return s * (1 + derivatives * x * (1 - s));
}

struct GatedCheck {
  Activation activation;
  const char* name;
  double (*exact)(double x, int derivatives);
  float (*composed)(float x, int derivatives);

  double share(double x, int derivatives) const { return exact(x, derivatives); }
  float share(float x, int derivatives) const { return composed(x, derivatives); }
};
constexpr GatedCheck kGated[] = {
    {Activation::kSilu, "swiglu", silu_share<double>, silu_share<float>},
    {Activation::kGelu, "geglu", gelu_share<GeluForm::kNormal, double>, gelu_share<GeluForm::kNormal, float>},
    {Activation::kTanhGelu, "geglu_tanh", gelu_share<GeluForm::kTanh, double>, gelu_share<GeluForm::kTanh, float>},
};

}  // namespace

void check_cast(Report* report) {
  for (const ElementType from : kTypes) {
    report->kernel("cast", from);
    const Tensor x = special_numbers(from);
    for (const ElementType to : kTypes) {
      report->problem(std::string("a cast to ") + type_name(to));
      Tensor y(to, x.count());
      cast(from, x.data(), to, y.data(), x.count());
      std::vector<double> truth;
      for (int64_t i = 0; i < x.count(); ++i) truth.push_back(rounded(to, x[i]));
      report->compare_bits("y", y, truth);
    }
  }
}

void check_unscale(Report* report) {
  constexpr float kFactor = 0x1p-3f;
  for (const ElementType type : kTypes) {
    report->kernel("unscale", type);
    for (const bool finite : {true, false}) {
      report->problem(finite ? "finite numbers" : "numbers with an infinity");
      Tensor x = Tensor::random(type, 77);
      if (!finite) x.set(75, kInfinity);
      Tensor y(type, x.count());
      report->require("the result", unscale(type, x.data(), kFactor, y.data(), x.count()) == finite);
      std::vector<double> truth;
      for (int64_t i = 0; i < x.count(); ++i) truth.push_back(rounded(type, x[i] * kFactor));
      report->compare_bits("y", y, truth);
    }
  }
}

void check_binary(Report* report) {
  constexpr int64_t kRows = 5, kColumns = 77;
  for (const ElementType type : kTypes)
    for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMultiply}) {
      report->kernel(op == BinaryOp::kAdd ? "add" : "multiply", type);
      const Tensor x = Tensor::random(type, kRows * kColumns);
      // y has x's shape, or is a row, or a column.
      for (const auto& [rows, columns] : {std::array{kRows, kColumns}, {1, kColumns}, {kRows, int64_t{1}}}) {
        report->problem("[5, 77] and [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
        const Tensor y = Tensor::random(type, rows * columns);
        Tensor out(type, x.count());
        Broadcast loops;
        report->require("the broadcast", broadcast({kRows, kColumns}, {rows, columns}, {kRows, kColumns}, &loops));
        binary(op, type, loops, x.data(), y.data(), out.data());
        std::vector<double> truth;
        for (int64_t i = 0; i < x.count(); ++i) {
          const double other = y[i / kColumns % rows * columns + i % kColumns % columns];
          // One rounding to float32, which is exact for 16-bit inputs, and one to the type.
          const auto single = static_cast<float>(op == BinaryOp::kAdd ? x[i] + other : x[i] * other);
          truth.push_back(rounded(type, single));
        }
        report->compare_bits("out", out, truth);
      }
    }
}

void check_scale(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("scale", type);
    report->problem("333 numbers");
    const Tensor x = Tensor::random(type, 333);
    Tensor out(type, x.count());
    scale(type, 1.7f, -0.3f, x.count(), x.data(), out.data());
    report->compare("out", out, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> values;
      for (int64_t i = 0; i < x.count(); ++i) values.push_back(Real(1.7f) * static_cast<Real>(x[i]) + Real(-0.3f));
      return values;
    });
  }
}

void check_sum_rows(Report* report) {
  constexpr int64_t kRows = 70, kColumns = 1109;
  for (const ElementType type : kTypes) {
    report->kernel("sum_rows", type);
    for (const int64_t rows : {int64_t{1}, kRows}) {
      report->problem(std::to_string(rows) + " rows");
      const Tensor x = Tensor::random(type, rows * kColumns);
      Tensor sums(type, kColumns);
      sum_rows(type, rows, kColumns, x.data(), sums.data());
      std::vector<double> truth;
      for (int64_t j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (int64_t i = 0; i < rows; ++i) sum += static_cast<float>(x[i * kColumns + j]);
        truth.push_back(rounded(type, sum));
      }
      report->compare_bits("the sums", sums, truth);
    }
  }
}

void check_sum_terms(Report* report) {
  constexpr int64_t kCount = 2069;
  for (const ElementType type : kTypes) {
    report->kernel("sum_terms", type);
    for (const int64_t terms : {1, 2, 3, 5}) {
      report->problem(std::to_string(terms) + " terms");
      const Tensor x = Tensor::random(type, terms * kCount);
      std::vector<const void*> each;
      for (int64_t t = 0; t < terms; ++t)
        each.push_back(static_cast<const char*>(x.data()) + t * kCount * element_size(type));
      Tensor sums(type, kCount), in_place = x;
      sum_terms(type, terms, kCount, each.data(), sums.data());
      each.front() = in_place.data();
      sum_terms(type, terms, kCount, each.data(), in_place.data());
      std::vector<double> truth, after;
      for (int64_t i = 0; i < x.count(); ++i) {
        float sum = 0;
        for (int64_t t = 0; i < kCount && t < terms; ++t) sum += static_cast<float>(x[t * kCount + i]);
        if (i < kCount) truth.push_back(rounded(type, sum));
        after.push_back(i < kCount ? truth.back() : x[i]);
      }
      report->compare_bits("the sums", sums, truth);
      report->compare_bits("the sums in place of the first term", in_place, after);
    }
  }
}

void check_gelu(Report* report) {
  for (const ElementType type : kTypes)
    for (const GeluForm form : {GeluForm::kNormal, GeluForm::kTanh}) {
      const std::string suffix = form == GeluForm::kNormal ? " (normal)" : " (tanh)";
      report->problem("333 numbers");
      const Tensor x = Tensor::random(type, 333, -8, 8), dy = Tensor::random(type, x.count());
      Tensor y(type, x.count()), dx(type, x.count());
      gelu_forward(form, type, x.count(), x.data(), y.data());
      gelu_backward(form, type, x.count(), x.data(), dy.data(), dx.data());
      const auto share = [form](auto v, int derivatives) {
        return form == GeluForm::kNormal ? gelu_share<GeluForm::kNormal>(v, derivatives)
                                         : gelu_share<GeluForm::kTanh>(v, derivatives);
      };
      report->kernel("gelu_forward" + suffix, type);
      report->compare("y", y, [&](auto arithmetic) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values;
        for (int64_t i = 0; i < x.count(); ++i) values.push_back(Real(x[i]) * share(Real(x[i]), 0));
        return values;
      });
      report->kernel("gelu_backward" + suffix, type);
      report->compare("dx", dx, [&](auto arithmetic) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values;
        for (int64_t i = 0; i < x.count(); ++i) values.push_back(Real(dy[i]) * share(Real(x[i]), 1));
        return values;
      });
    }
}

void check_squared_norm(Report* report) {
  for (const ElementType type : kTypes) {
    report->kernel("squared_norm", type);
    report->problem("40001 numbers");
    const Tensor x = Tensor::random(type, 40001);
    Tensor norm(ElementType::kFloat32, 1);
    norm.set(0, squared_norm(type, x.data(), x.count()));
    report->compare("the sum", norm, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      std::vector<Real> sum(1, 0);
      for (int64_t i = 0; i < x.count(); ++i) sum[0] += static_cast<Real>(x[i]) * static_cast<Real>(x[i]);
      return sum;
    });
  }
}

void check_gated(Report* report) {
  const GatedShape shape{3, 77, 154};
  for (const GatedCheck& check : kGated)
    for (const ElementType type : kTypes) {
      report->problem("3 rows of 77");
      Tensor both = Tensor::random(type, shape.rows * shape.stride, -8, 8);
      const Tensor dy = Tensor::random(type, shape.rows * shape.width);
      const auto up_of = [&](void* data) { return static_cast<char*>(data) + shape.width * element_size(type); };
      Tensor y(type, dy.count()), gradients(type, both.count());
      gated_forward(check.activation, type, shape, both.data(), up_of(both.data()), y.data());
      gated_backward(check.activation, type, shape, both.data(), up_of(both.data()), dy.data(), gradients.data(),
                     up_of(gradients.data()));
      const auto gate_at = [&](int64_t i) { return i / shape.width * shape.stride + i % shape.width; };
      report->kernel(std::string(check.name) + "_forward", type);
      report->compare("y", y, [&](auto arithmetic) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values;
        for (int64_t i = 0; i < dy.count(); ++i) {
          const Real gate = both[gate_at(i)], up = both[gate_at(i) + shape.width];
          values.push_back(gate * check.share(gate, 0) * up);
        }
        return values;
      });
      report->kernel(std::string(check.name) + "_backward", type);
      report->compare("the gradient", gradients, [&](auto arithmetic) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values(both.count());
        for (int64_t i = 0; i < dy.count(); ++i) {
          const Real gate = both[gate_at(i)], up = both[gate_at(i) + shape.width], g = dy[i];
          values[gate_at(i)] = g * up * check.share(gate, 1);
          values[gate_at(i) + shape.width] = g * gate * check.share(gate, 0);
        }
        return values;
      });
    }
}

void check_rotary(Report* report) {
  for (const ElementType type : kTypes)
    for (const RotaryMode mode : {RotaryMode::kHalf, RotaryMode::kInterleave}) {
      const RotaryShape shape{{2, 5, 3}, {1, 5, 1}, 38, mode};
      const bool half = mode == RotaryMode::kHalf;
      const std::string suffix = half ? " (half)" : " (interleave)";
      report->problem("[2, 5, 3, 38] with angles [1, 5, 1, 38]");
      const int64_t width = shape.head_dim, rows = 2 * 5 * 3, angles = 5;
      const Tensor x = Tensor::random(type, rows * width), dy = Tensor::random(type, rows * width);
      const Tensor cos = Tensor::random(type, angles * width), sin = Tensor::random(type, angles * width);
      Tensor y(type, x.count()), dx(type, x.count()), dcos(type, cos.count()), dsin(type, sin.count());
      rotary_forward(type, shape, x.data(), cos.data(), sin.data(), y.data());
      rotary_backward(type, shape, dy.data(), cos.data(), sin.data(), dx.data());
      rotary_angle_gradients(type, shape, x.data(), dy.data(), dcos.data(), dsin.data());

      // The element that is rotated with element i, and the sign of its sine.
      const auto partner = [&](int64_t i) { return half ? (i + width / 2) % width : i ^ 1; };
      const auto sign = [&](int64_t i) { return (half ? i < width / 2 : i % 2 == 0) ? -1 : 1; };
      const auto rotate = [&](auto arithmetic, const Tensor& from, bool backward) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < width; ++i) {
            const int64_t angle = row / 3 % 5 * width, other = partner(i);
            const Real value = from[row * width + i], beside = from[row * width + other];
            const Real c = cos[angle + i], s = backward ? sign(other) * sin[angle + other] : sign(i) * sin[angle + i];
            values.push_back(value * c + beside * s);
          }
        return values;
      };
      const auto angle_gradient = [&](auto arithmetic, bool of_sin) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> sums(angles * width, 0);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < width; ++i) {
            const Real g = dy[row * width + i];
            sums[row / 3 % 5 * width + i] +=
                of_sin ? sign(i) * g * static_cast<Real>(x[row * width + partner(i)])
                       : g * static_cast<Real>(x[row * width + i]);
          }
        return sums;
      };
      report->kernel("rotary_forward" + suffix, type);
      report->compare("y", y, [&](auto arithmetic) { return rotate(arithmetic, x, false); });
      report->kernel("rotary_backward" + suffix, type);
      report->compare("dx", dx, [&](auto arithmetic) { return rotate(arithmetic, dy, true); });
      report->kernel("rotary_angles" + suffix, type);
      report->compare("dcos", dcos, [&](auto arithmetic) { return angle_gradient(arithmetic, false); });
      report->compare("dsin", dsin, [&](auto arithmetic) { return angle_gradient(arithmetic, true); });
    }
}

void check_adam(Report* report) {
  constexpr int64_t kCount = 1117;
  for (const ElementType type : kTypes)
    for (const bool amsgrad : {false, true}) {
      report->kernel(amsgrad ? "adam (amsgrad)" : "adam", type);
      report->problem("1117 weights");
      const AdamScalars s = adam_scalars(0.9, 0.95, 1e-8, 1e-2, 0.1, 0.81, 0.9025, false);
      Tensor param(type, kCount), master = Tensor::random(ElementType::kFloat32, kCount);
      const Tensor grad = Tensor::random(type, kCount);
      Tensor moment1 = Tensor::random(ElementType::kFloat32, kCount);
      Tensor moment2 = Tensor::random(ElementType::kFloat32, kCount, 0.1, 1);
      Tensor largest = Tensor::random(ElementType::kFloat32, kCount, 0.1, 1);
      const Tensor old_master = master, old1 = moment1, old2 = moment2, old_largest = largest;
      const auto array = [](Tensor* tensor) { return AdamArray{tensor->data(), tensor->type()}; };
      Tensor grad_copy = grad;
      const AdamArray none{nullptr, ElementType::kFloat32};
      adam(s, {array(&param), array(&grad_copy), array(&moment1), array(&moment2), amsgrad ? array(&largest) : none,
               array(&master)},
           kCount);
      struct State {
        double m, v, u, w;
      };
      const auto after = [&](auto arithmetic, double State::*field) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> values;
        for (int64_t i = 0; i < kCount; ++i) {
          const Real g = grad[i], m = Real(s.beta1) * Real(old1[i]) + Real(s.one_minus_beta1) * g;
          const Real v = Real(s.beta2) * Real(old2[i]) + Real(s.one_minus_beta2) * g * g;
          const Real u = amsgrad ? std::max(v, Real(old_largest[i])) : v, before = old_master[i];
          const Real w = before - (Real(s.decay) * before + Real(s.step_size) * m / (std::sqrt(u) + Real(s.epsilon)));
          values.push_back(static_cast<Real>(State{m, v, u, w}.*field));
        }
        return values;
      };
      report->compare("moment1", moment1, [&](auto arithmetic) { return after(arithmetic, &State::m); });
      report->compare("moment2", moment2, [&](auto arithmetic) { return after(arithmetic, &State::v); });
      report->compare("weight", master, [&](auto arithmetic) { return after(arithmetic, &State::w); });
      report->compare("param", param, [&](auto arithmetic) { return after(arithmetic, &State::w); });
      if (amsgrad)
        report->compare("moment2_max", largest, [&](auto arithmetic) { return after(arithmetic, &State::u); });
    }
}

}  // namespace paddle_fused::checks
