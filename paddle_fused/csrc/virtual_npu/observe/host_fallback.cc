#include "virtual_npu/observe/host_fallback.h"

#include <atomic>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/enforce.h"

namespace virtual_npu {
namespace {

// Kernel, its dtype, placement, dtype and dimensions of the tensor that is the cause, whether the kernel makes that dtype
// from others. A kernel for which it returns anything but 0 is refused.
using Observer = int (*)(const char* kernel, const char* dtype, const char* placement, const char* tensor_dtype,
                         const int64_t* dims, int rank, int introduces_double);
std::atomic<Observer> observer{nullptr};

// The largest tensor of double precision among a kernel's arguments, else the largest one of the kernel's own dtype.
class FallbackCause {
 public:
  explicit FallbackCause(phi::DataType dtype) : dtype_(dtype) {}

  void add_input(const phi::DenseTensor* tensor) {
    if (!tensor) return;
    has_double_input_ |= is_double_precision(tensor->dtype());
    add(tensor);
  }
  void add_output(const phi::DenseTensor* tensor) {
    if (tensor) add(tensor);
  }

  void report(const KernelEntry& entry) const {
    const Placement placement = double_ && entry.placement == Placement::kNpu ? Placement::kAicpu : entry.placement;
    if (placement == Placement::kNpu) return;
    const Observer now = observer.load(std::memory_order_acquire);
    if (!now) return;
    const phi::DenseTensor* tensor = double_ ? double_ : same_;
    const phi::DataType dtype = tensor ? tensor->dtype() : entry.dtype;
    const char* where = placement_name(placement);
    const int refused = now(entry.name.c_str(), dtype_name(entry.dtype).c_str(), where, dtype_name(dtype).c_str(),
                            tensor ? tensor->dims().Get() : nullptr, tensor ? tensor->dims().size() : 0,
                            double_ != nullptr && !has_double_input_);
    if (refused)
      PADDLE_THROW(common::errors::Unimplemented(
          "On a card the kernel '%s' would leave the NPU for its %s because of a %s tensor, which the watch over dtypes "
          "refuses.",
          entry.name, placement == Placement::kAicpu ? "AICPU" : "host", dtype_name(dtype)));
  }

 private:
  void add(const phi::DenseTensor* tensor) {
    const phi::DenseTensor*& best = is_double_precision(tensor->dtype()) ? double_ : same_;
    if (!is_double_precision(tensor->dtype()) && tensor->dtype() != dtype_) return;
    if (!best || tensor->numel() > best->numel()) best = tensor;
  }

  phi::DataType dtype_;
  const phi::DenseTensor* double_ = nullptr;
  const phi::DenseTensor* same_ = nullptr;
  bool has_double_input_ = false;
};

const phi::DenseTensor* dense(const phi::TensorBase* tensor) {
  return tensor && phi::DenseTensor::classof(tensor) ? static_cast<const phi::DenseTensor*>(tensor) : nullptr;
}

}  // namespace

bool host_fallbacks_are_observed() { return observer.load(std::memory_order_relaxed) != nullptr; }

void report_host_fallback(const KernelEntry& entry, const TensorPointers& inputs, const TensorPointers& outputs) {
  FallbackCause cause(entry.dtype);
  for (const phi::TensorBase* tensor : inputs) cause.add_input(dense(tensor));
  for (const phi::TensorBase* tensor : outputs) cause.add_output(dense(tensor));
  cause.report(entry);
}

}  // namespace virtual_npu

// For paddle_fused.virtual_npu.watch_host_fallbacks(); returns the observer in force until then.
extern "C" void* virtual_npu_observe_host_fallbacks(void* function) {
  return reinterpret_cast<void*>(
      virtual_npu::observer.exchange(reinterpret_cast<virtual_npu::Observer>(function), std::memory_order_acq_rel));
}
