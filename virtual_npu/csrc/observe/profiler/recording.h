// The device's work while Paddle's profiler records. Otherwise, the only cost is recording().
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
  std::vector<MemorySample> memory;  // only changes
};
void start_recording();
// Unfinished work is not among the tasks.
Recorded stop_recording();

uint64_t now();
// A task that the calling thread launches now.
Task new_task(const std::string& name, TaskType type, int device);
void add(Task task);

// A kernel on the calling thread, from its launch to the end of the object's lifetime. It includes nested kernels and
// copies, but not the time of a collective that runs on this thread.
class KernelSpan {
 public:
  // `silent`: only enqueues work on a stream and is not device work.
  KernelSpan(const std::string& name, TaskType type, int device, bool silent = false);
  ~KernelSpan();
  KernelSpan(const KernelSpan&) = delete;

  // The open one on the calling thread, or nullptr.
  static KernelSpan* open();

  Tensors& inputs() { return task_.inputs; }
  Tensors& outputs() { return task_.outputs; }
  // The launch ends and the kernel begins.
  void begin();
  void exclude(uint64_t from, uint64_t until);

 private:
  Task task_;
  bool silent_;
  std::vector<std::pair<uint64_t, uint64_t>> pieces_;
};

// Wraps `work`, which becomes the recorded `task` when it is done on `stream`, or on the calling thread with nullptr.
std::function<void()> recorded(Task task, const Stream* stream, std::function<void()> work);

std::function<void()> recorded_copy(const char* name, int device, uint64_t bytes, const Stream* stream,
                                    std::function<void()> copy);

// Whether tasks get their call site, which requires walking Python's stack for every kernel.
bool with_call_sites();
void record_call_sites(bool on);

}  // namespace profiler
}  // namespace virtual_npu
