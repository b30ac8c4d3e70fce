#include "checks/synchronizations.h"

#include <array>
#include <atomic>

#include "runtime/config.h"
#include "runtime/python.h"

namespace virtual_npu {
namespace checks {
namespace {

// `launches`: queued since the last wait. `continues`: this thread has launched nothing since its last wait.
using Observer = void (*)(int kind, uint64_t bytes, uint64_t launches, int continues);
std::atomic<Observer> observer{nullptr};

// Waits without a line: of threads without Python, and while Python raises an exception.
struct Totals {
  std::atomic<uint64_t> waits{0}, bytes{0}, launches{0};
};
constexpr int kKinds = int(Wait::kHostKernel) + 1;
std::array<Totals, kKinds> totals;

std::atomic<uint64_t> queued{0};  // since the last wait of a thread with Python
thread_local uint64_t queued_here = 0;  // by this thread, since its last wait
thread_local int open_launches = 0;
thread_local bool has_waited = false;  // and has launched nothing since
thread_local Wait last_wait = Wait::kStream;

bool is_copy(Wait kind) { return kind == Wait::kCopyToHost || kind == Wait::kCopyToDevice; }
bool is_plain(Wait kind) { return kind == Wait::kDevice || kind == Wait::kStream; }

// Paddle waits for a stream before and after a copy, sometimes twice: together they are one wait.
void count_without_line(Wait kind, uint64_t bytes, uint64_t launches, bool continues) {
  if (continues && is_plain(kind)) return;
  if (continues && is_copy(kind) && is_plain(last_wait)) totals[size_t(last_wait)].waits -= 1;
  last_wait = kind;
  Totals& total = totals[size_t(kind)];
  total.waits += 1;
  total.bytes += bytes;
  total.launches += launches;
}

void report(Wait kind, uint64_t bytes, bool continues) {
  const Python& py = python();
  if (py.runs_on_this_thread()) {
    const int state = py.acquire();
    const bool is_raising = py.error() != nullptr;  // no other code may run meanwhile
    const Observer now = observer.load(std::memory_order_acquire);
    if (now && !is_raising) now(int(kind), bytes, queued.exchange(0, std::memory_order_relaxed), continues);
    py.release(state);
    if (now && !is_raising) return;
  }
  count_without_line(kind, bytes, queued_here, continues);
}

}  // namespace

void queues_work() {
  if (!config().counts_waits || open_launches > 0) return;
  queued.fetch_add(1, std::memory_order_relaxed);
  ++queued_here;
  has_waited = false;
}
QueuedWork::QueuedWork() {
  queues_work();
  ++open_launches;
}
QueuedWork::~QueuedWork() { --open_launches; }

void synchronizes(Wait kind, uint64_t bytes) {
  if (!config().counts_waits || open_launches > 0) return;
  const bool continues = has_waited && queued_here == 0;
  if (kind == Wait::kCopyToDevice && !continues) return;
  has_waited = true;
  report(kind, bytes, continues);
  queued_here = 0;
}

void reads_on_host(const std::vector<const phi::TensorBase*>& inputs) {
  uint64_t bytes = 0;
  for (const phi::TensorBase* input : inputs) {
    if (!input || !phi::DenseTensor::classof(input) || !input->initialized()) continue;
    if (input->place().GetType() == phi::AllocationType::CUSTOM)
      bytes += uint64_t(input->numel()) * phi::SizeOf(input->dtype());
  }
  if (bytes) synchronizes(Wait::kHostKernel, bytes);
}

}  // namespace checks
}  // namespace virtual_npu

// For virtual_npu/synchronizations.py: sets the observer, which is called on threads that run Python.
extern "C" void virtual_npu_observe_synchronizations(void* function) {
  using namespace virtual_npu::checks;
  observer.store(reinterpret_cast<Observer>(function), std::memory_order_release);
}

// Takes the waits, bytes and launches that have no line.
extern "C" void virtual_npu_take_synchronizations(int kind, uint64_t* counts) {
  using namespace virtual_npu::checks;
  Totals& total = totals[size_t(kind)];
  counts[0] = total.waits.exchange(0);
  counts[1] = total.bytes.exchange(0);
  counts[2] = total.launches.exchange(0);
}
