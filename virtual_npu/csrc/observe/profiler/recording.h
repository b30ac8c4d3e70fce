// What the device does while Paddle's profiler records. While it does not, recording() is all that it costs.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "observe/profiler/task.h"
#include "runtime/stream.h"

namespace virtual_npu {
namespace profiler {

extern std::atomic<bool> is_recording;
inline bool recording() { return __builtin_expect(is_recording.load(std::memory_order_relaxed), false); }

struct Recorded {
  uint64_t start = 0, end = 0;
  std::vector<Task> tasks;  // in the order in which they ended
  std::vector<MemorySample> memory;  // where it differs from the one before
};
void start_recording();
// Work that has not finished by now is not among the tasks.
Recorded stop_recording();

uint64_t now();
// A task that the calling thread launches now.
Task new_task(const std::string& name, TaskType type, int device);
void add(Task task);

// A kernel on the calling thread, from its launch to the end of the object's lifetime. Nested kernels and copies are part
// of it; the time of a collective that runs on this thread is not.
class KernelSpan {
 public:
  // `silent`: only enqueues work on a stream, and is no work of the device itself.
  KernelSpan(const std::string& name, TaskType type, int device, bool silent = false);
  ~KernelSpan();
  KernelSpan(const KernelSpan&) = delete;

  // The one that is open on the calling thread, or nullptr.
  static KernelSpan* open();

  Tensors& inputs() { return task_.inputs; }
  Tensors& outputs() { return task_.outputs; }
  // The launch is over, the kernel begins.
  void begin();
  void exclude(uint64_t from, uint64_t until);

 private:
  Task task_;
  bool silent_;
  std::vector<std::pair<uint64_t, uint64_t>> pieces_;
};

// `work`, which becomes the recorded `task` when it is done on `stream`, or on the calling thread if that is nullptr.
std::function<void()> recorded(Task task, const Stream* stream, std::function<void()> work);

std::function<void()> recorded_copy(const char* name, int device, uint64_t bytes, const Stream* stream,
                                    std::function<void()> copy);

// Whether tasks get their call site: of a kernel it costs a walk through Python's stack.
bool with_call_sites();
void record_call_sites(bool on);

}  // namespace profiler
}  // namespace virtual_npu
