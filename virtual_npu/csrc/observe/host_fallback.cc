#include "observe/host_fallback.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paddle/phi/core/enforce.h"
#include "observe/python_module.h"
#include "runtime/python.h"

namespace virtual_npu {
namespace {

constexpr char kFallbacks[] = "virtual_npu.host_fallbacks";

// The observer's argument. host_fallbacks.py has the same fields.
struct Call {
  const char *kernel, *placement, *dtype;  // dtype and dimensions of the tensor that causes the fallback
  const int64_t* dims;
  int rank;             // -1: no tensor
  int introduces_double;  // the kernel creates this dtype from others
  int queued;           // the kernel has finished, and was called on another thread
  uint64_t count;
};
// `site`: a hash of kernel, placement and dtype; 0 for a queued call. A non-zero return value refuses the kernel.
using Observer = int (*)(uint64_t site, const Call*);
std::atomic<Observer> observer{nullptr};

class Fallback {
 public:
  std::string kernel, placement, dtype;
  std::vector<int64_t> dims;
  int rank;
  bool introduces_double;

  auto key() const { return std::tie(kernel, placement, dtype, dims, rank, introduces_double); }
  bool report(uint64_t count, bool queued) const {
    const Observer now = observer.load(std::memory_order_acquire);
    const Call call{kernel.c_str(), placement.c_str(), dtype.c_str(), dims.data(), rank, introduces_double, queued, count};
    return now && now(queued ? 0 : site(), &call) != 0;
  }

 private:
  uint64_t site() const {
    uint64_t site = 0;
    for (const std::string* part : {&kernel, &placement, &dtype}) site = site * 31 + std::hash<std::string>()(*part);
    return site;
  }
};

// Calls from threads without Python.
struct Queue {
  std::mutex mutex;
  std::vector<std::pair<Fallback, uint64_t>> waiting;
  bool is_announced = false;
};
Queue& queue() {
  static auto* queue = new Queue;
  return *queue;
}

bool report_queued() {
  std::vector<std::pair<Fallback, uint64_t>> waiting;
  {
    std::lock_guard<std::mutex> lock(queue().mutex);
    waiting.swap(queue().waiting);
    queue().is_announced = false;
  }
  bool is_refused = false;
  for (const auto& [fallback, count] : waiting) is_refused |= fallback.report(count, true);
  return is_refused;
}

// Runs on the main thread, between two Python instructions. Exceptions surface there.
int report_between_instructions(void*) {
  if (!report_queued()) return 0;
  const Python& py = python();
  Python::Object fallbacks = py.import(kFallbacks);
  if (!fallbacks) return -1;
  Python::Object nothing = py.call_method(fallbacks, "raise_refusal", nullptr);
  py.unref(fallbacks);
  if (!nothing) return -1;
  py.unref(nothing);
  return 0;
}

void enqueue(Fallback fallback) {
  std::lock_guard<std::mutex> lock(queue().mutex);
  auto& waiting = queue().waiting;
  const auto same = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const auto& other) { return other.first.key() == fallback.key(); });
  if (same == waiting.end())
    waiting.emplace_back(std::move(fallback), 1);
  else
    ++same->second;
  const Python& py = python();
  if (!queue().is_announced && py.is_there())
    queue().is_announced = py.add_pending_call(report_between_instructions, nullptr) == 0;
}

// Returns whether the kernel is refused.
bool report_now_or_later(Fallback fallback, int reports) {
  if (reports & kOnAnyThread) return fallback.report(1, false);
  const Python& py = python();
  if (!py.runs_on_this_thread()) {
    enqueue(std::move(fallback));
    return false;
  }
  const int state = py.acquire();
  const bool is_raising = py.error() != nullptr;  // no other code may run meanwhile
  const bool is_refused = !is_raising && fallback.report(1, false);
  py.release(state);
  if (is_raising) enqueue(std::move(fallback));
  return is_refused;
}

}  // namespace

std::atomic<int> fallback_reports{kNoFallbacks};

void FallbackCause::report(const KernelEntry& entry, int reports) const {
  const Placement placement = double_ && entry.placement == Placement::kNpu ? Placement::kAicpu : entry.placement;
  if (placement == Placement::kNpu || !(double_ || reports & kEveryFallback)) return;
  const phi::DenseTensor* tensor = double_ ? double_ : same_;
  Fallback fallback;
  fallback.kernel = entry.name;
  fallback.placement = placement_name(placement);
  fallback.dtype = dtype_name(tensor ? tensor->dtype() : entry.dtype);
  fallback.rank = tensor ? tensor->dims().size() : -1;
  if (tensor) fallback.dims.assign(tensor->dims().Get(), tensor->dims().Get() + fallback.rank);
  fallback.introduces_double = double_ && !has_double_input_;
  if (report_now_or_later(fallback, reports))
    PADDLE_THROW(common::errors::Unimplemented(
        "On a card, the kernel '%s' would run on its %s instead of the NPU because of a %s tensor, which a watch over "
        "dtypes or a filter of AICPUWarning refuses.",
        entry.name, placement == Placement::kAicpu ? "AICPU" : "host", fallback.dtype));
}

void start_fallback_warnings() { start_python_module("aicpu_warnings", "no warnings about float64"); }

}  // namespace virtual_npu

// For virtual_npu/host_fallbacks.py: sets the observer and the kernels it receives (FallbackReports).
extern "C" void virtual_npu_observe_fallbacks(void* function, int reports) {
  using namespace virtual_npu;
  observer.store(reinterpret_cast<Observer>(function), std::memory_order_release);
  fallback_reports.store(reports, std::memory_order_release);
}
