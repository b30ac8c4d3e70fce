#include "checks/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace paddle_fused::checks {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Equal infinities count as no error. A NaN counts as an error unless both are NaN.
double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::fabs(a - b);
  return std::isnan(difference) ? kInfinity : difference;
}

}  // namespace

void Report::kernel(const std::string& name, ElementType type) {
  end_line();
  kernel_ = name;
  type_ = type;
}

void Report::compare(const char* what, const Tensor& result, const std::vector<double>& truth,
                     const std::vector<float>& composed) {
  double error = 0, noise_floor = 0, largest = 0;
  for (int64_t i = 0; i < result.count(); ++i) {
    error = std::max(error, distance(result[i], truth[i]));
    noise_floor = std::max(noise_floor, distance(rounded(result.type(), composed[i]), truth[i]));
    largest = std::max(largest, std::fabs(truth[i]));
  }
  const double allowed = 2 * noise_floor + rounding(result.type()) * largest;
  if (!std::isfinite(allowed)) {
    // A NaN reference or an infinite noise floor would allow anything, so it is an error of this program.
    require(what, false);
    return;
  }
  judge(what, result, error, allowed);
}

void Report::compare_bits(const char* what, const Tensor& result, const std::vector<double>& truth) {
  double error = 0;
  for (int64_t i = 0; i < result.count(); ++i)
    error = std::max(error, std::signbit(result[i]) == std::signbit(truth[i]) || std::isnan(truth[i])
                                ? distance(result[i], truth[i])
                                : kInfinity);
  judge(what, result, error, 0);
}

void Report::judge(const char* what, const Tensor& result, double error, double allowed) {
  ++results_;
  const double share = error == 0 ? 0 : error / allowed;
  if (share >= worst_) {
    worst_ = share;
    error_ = error;
    allowed_ = allowed;
  }
  if (error <= allowed && result.fences_intact()) return;
  line_holds_ = false;
  std::printf("  %s of %s: error %.3g, allowed %.3g%s\n", what, problem_.c_str(), error, allowed,
              result.fences_intact() ? "" : "; memory outside the result was written");
}

void Report::require(const char* what, bool holds) {
  ++results_;
  if (holds) return;
  line_holds_ = false;
  std::printf("  %s of %s is wrong\n", what, problem_.c_str());
}

void Report::same_everywhere(const std::vector<uint8_t>& bytes) {
  for (const uint8_t byte : bytes) fingerprint_ = (fingerprint_ ^ byte) * 0x100000001b3;
}

void Report::end_line() {
  if (results_ > 0)
    std::printf("%-11s %-28s %-9s %3lld results, error %.2e of %.2e allowed: %s\n", isa_, kernel_.c_str(),
                type_name(type_), static_cast<long long>(results_), error_, allowed_, line_holds_ ? "ok" : "FAILED");
  std::fflush(stdout);
  holds_ &= line_holds_;
  results_ = 0;
  worst_ = error_ = allowed_ = 0;
  line_holds_ = true;
}

bool Report::finish() {
  end_line();
  return holds_;
}

}  // namespace paddle_fused::checks
