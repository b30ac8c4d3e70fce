// Compares the results of kernels with reference results.
//
// The reference is a scalar formula in double, evaluated on the kernel's inputs. The noise floor is the error of the
// same formula in float, rounded to the tensors' type wherever separate operators would store a tensor. A kernel's
// error may be at most twice the noise floor, plus one rounding of the largest result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checks/tensor.h"

namespace paddle_fused::checks {

struct Exact {
  using Real = double;
  double stored(double x) const { return x; }
  double stored_as(ElementType, double x) const { return x; }
};
struct Composed {
  using Real = float;
  ElementType type;
  float stored(float x) const { return static_cast<float>(rounded(type, x)); }
  float stored_as(ElementType as, float x) const { return static_cast<float>(rounded(as, x)); }
};

class Report {
 public:
  explicit Report(const char* isa) : isa_(isa) {}

  // Ends the line of the previous kernel and starts a new one.
  void kernel(const std::string& name, ElementType type);
  // Names the problem of the following results in messages.
  void problem(const std::string& name) { problem_ = name; }

  // `reference(arithmetic)` computes all elements of `result`. It is called with Exact and with Composed.
  template <typename Reference>
  void compare(const char* what, const Tensor& result, const Reference& reference) {
    compare(what, result, reference(Exact{}), reference(Composed{type_}));
  }
  void compare(const char* what, const Tensor& result, const std::vector<double>& truth,
               const std::vector<float>& composed);
  // For results that are defined bit for bit.
  void compare_bits(const char* what, const Tensor& result, const std::vector<double>& truth);
  void require(const char* what, bool holds);

  // Bytes that must be the same on every instruction set: the elements that dropout keeps.
  void same_everywhere(const std::vector<uint8_t>& bytes);
  uint64_t fingerprint() const { return fingerprint_; }

  // Ends the last line. Returns whether all results passed.
  bool finish();

 private:
  void judge(const char* what, const Tensor& result, double error, double allowed);
  void end_line();

  const char* isa_;
  std::string kernel_, problem_;
  ElementType type_ = ElementType::kFloat32;
  int64_t results_ = 0;
  uint64_t fingerprint_ = 0xcbf29ce484222325;
  double worst_ = 0, error_ = 0, allowed_ = 0;
  bool line_holds_ = true, holds_ = true;
};

}  // namespace paddle_fused::checks
