// Reports kernels that a card would not run on its cores to the observer in virtual_npu/host_fallbacks.py, which
// determines the program line.
#pragma once
#include <atomic>

#include "paddle/phi/core/dense_tensor.h"
#include "bridge/kernel_entry.h"

namespace virtual_npu {

// The kernels to report. host_fallbacks.py has the same numbers.
enum FallbackReports : int {
  kNoFallbacks = 0,
  kDoublePrecision = 1,  // those with a float64 or complex128 tensor
  kEveryFallback = 2,
  kOnAnyThread = 4,  // immediately, even on threads without Python; otherwise the main thread reports these calls
};
extern std::atomic<int> fallback_reports;

inline const phi::DenseTensor* dense(const phi::TensorBase* tensor) {
  return tensor && phi::DenseTensor::classof(tensor) ? static_cast<const phi::DenseTensor*>(tensor) : nullptr;
}

// The largest double-precision tensor among a kernel's arguments, otherwise the largest one with the kernel's dtype.
class FallbackCause {
 public:
  explicit FallbackCause(phi::DataType dtype) : dtype_(dtype) {}

  void add_input(const phi::TensorBase* tensor) {
    if (const phi::DenseTensor* found = dense(tensor)) {
      has_double_input_ |= is_double_precision(found->dtype());
      add(found);
    }
  }
  void add_output(const phi::TensorBase* tensor) {
    if (const phi::DenseTensor* found = dense(tensor)) add(found);
  }

  // Throws phi's Unimplemented if the observer refuses the kernel.
  void report(const KernelEntry& entry, int reports) const;

 private:
  void add(const phi::DenseTensor* tensor) {
    const bool is_double = is_double_precision(tensor->dtype());
    if (!is_double && tensor->dtype() != dtype_) return;
    const phi::DenseTensor*& best = is_double ? double_ : same_;
    if (!best || tensor->numel() > best->numel()) best = tensor;
  }

  phi::DataType dtype_;
  const phi::DenseTensor* double_ = nullptr;
  const phi::DenseTensor* same_ = nullptr;
  bool has_double_input_ = false;
};

template <typename Arguments>
bool has_double(const Arguments& arguments) {
  bool found = false;
  const auto look = [&](const phi::TensorBase* tensor) {
    if (const phi::DenseTensor* each = dense(tensor)) found |= is_double_precision(each->dtype());
  };
  arguments.each_input(look);
  arguments.each_output(look);
  return found;
}

template <typename Arguments>
void report_host_fallback(const KernelEntry& entry, const Arguments& arguments) {
  const int reports = fallback_reports.load(std::memory_order_acquire);
  if (reports == kNoFallbacks || (!(reports & kEveryFallback) && !has_double(arguments))) return;
  FallbackCause cause(entry.dtype);
  arguments.each_input([&](const phi::TensorBase* tensor) { cause.add_input(tensor); });
  arguments.each_output([&](const phi::TensorBase* tensor) { cause.add_output(tensor); });
  cause.report(entry, reports);
}

// Imports the Python module that warns about these kernels, in a process that runs Python.
void start_fallback_warnings();

}  // namespace virtual_npu
