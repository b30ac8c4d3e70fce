#include "observe/profiler/recording.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "paddle/phi/common/memory_utils.h"
#include "observe/source_line.h"
#include "runtime/memory.h"

namespace virtual_npu {
namespace profiler {

std::atomic<bool> is_recording{false};

namespace {

struct Record {
  std::mutex mutex;
  Recorded recorded;
  std::map<int, MemorySample> last_memory;  // of each device
  std::map<const Stream*, int> streams;  // their numbers
  int numbers = 0;
};
// Never destroyed, because streams end after the plugin's static objects are gone.
Record& record() {
  static auto* record = new Record;
  return *record;
}

std::atomic<bool> call_sites{false};
thread_local KernelSpan* open_span = nullptr;

// Work on the compute stream runs on the launching thread, so each thread counts as a separate stream here.
int stream_of_this_thread() {
  thread_local const int number = [] {
    std::lock_guard<std::mutex> lock(record().mutex);
    return ++record().numbers;
  }();
  return number;
}

void sample_memory(uint64_t time, int device) {
  const uint64_t allocated = phi::memory_utils::DeviceMemoryStatCurrentValue("Allocated", device);
  const uint64_t reserved = used_bytes(device);
  std::lock_guard<std::mutex> lock(record().mutex);
  MemorySample& last = record().last_memory[device];
  if (!recording() || (last.time && last.allocated == allocated && last.reserved == reserved)) return;
  last = {time, device, allocated, reserved};
  record().recorded.memory.push_back(last);
}

int number_of(const Stream* stream) {
  if (!stream) return stream_of_this_thread();
  std::lock_guard<std::mutex> lock(record().mutex);
  int& number = record().streams[stream];
  if (number == 0) number = ++record().numbers;
  return number;
}

// Adds the task when it ends, even after an exception.
class Running {
 public:
  explicit Running(Task task) : task_(std::move(task)) { task_.start = now(); }
  ~Running() {
    task_.end = now();
    if (KernelSpan* span = KernelSpan::open()) span->exclude(task_.start, task_.end);
    add(std::move(task_));
  }

 private:
  Task task_;
};

}  // namespace

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

void start_recording() {
  std::lock_guard<std::mutex> lock(record().mutex);
  record().recorded = Recorded{};
  record().last_memory.clear();
  record().recorded.start = now();
  is_recording.store(true);
}

Recorded stop_recording() {
  std::lock_guard<std::mutex> lock(record().mutex);
  is_recording.store(false);
  record().recorded.end = now();
  return std::move(record().recorded);
}

Task new_task(const std::string& name, TaskType type, int device) {
  thread_local const uint64_t thread = syscall(SYS_gettid);
  Task task;
  task.launch_start = now();
  task.name = name;
  task.type = type;
  task.device = device;
  task.thread = thread;
  return task;
}

void add(Task task) {
  std::lock_guard<std::mutex> lock(record().mutex);
  if (recording()) record().recorded.tasks.push_back(std::move(task));
}

KernelSpan::KernelSpan(const std::string& name, TaskType type, int device, bool silent)
    : task_(new_task(name, type, device)), silent_(silent) {
  task_.stream = number_of(nullptr);
  if (with_call_sites()) task_.call_site = source_line();
  open_span = this;
}

KernelSpan::~KernelSpan() {
  open_span = nullptr;
  if (silent_ || task_.start == 0) return;  // 0: an exception was thrown before it began
  pieces_.emplace_back(task_.start, now());
  sample_memory(pieces_.back().second, task_.device);
  for (const auto& [start, end] : pieces_) {
    Task piece = task_;
    piece.launch_end = std::min(task_.launch_end, start);
    piece.start = start;
    piece.end = end;
    if (&pieces_.front().first != &start) piece.launch_start = piece.launch_end = start;
    add(std::move(piece));
  }
}

KernelSpan* KernelSpan::open() { return open_span; }

void KernelSpan::begin() { task_.launch_end = task_.start = now(); }

void KernelSpan::exclude(uint64_t from, uint64_t until) {
  pieces_.emplace_back(task_.start, from);
  task_.start = until;
}

std::function<void()> recorded(Task task, const Stream* stream, std::function<void()> work) {
  task.stream = number_of(stream);
  task.launch_end = now();
  return [task = std::move(task), work = std::move(work)] {
    Running running(task);
    work();
  };
}

std::function<void()> recorded_copy(const char* name, int device, uint64_t bytes, const Stream* stream,
                                    std::function<void()> copy) {
  Task task = new_task(name, TaskType::kMemcpy, device);
  task.bytes = bytes;
  return recorded(std::move(task), stream, std::move(copy));
}

bool with_call_sites() { return call_sites.load(std::memory_order_relaxed); }

void record_call_sites(bool on) { call_sites.store(on); }

}  // namespace profiler
}  // namespace virtual_npu

// For virtual_npu.record_call_sites().
extern "C" void virtual_npu_record_call_sites(int on) { virtual_npu::profiler::record_call_sites(on != 0); }
