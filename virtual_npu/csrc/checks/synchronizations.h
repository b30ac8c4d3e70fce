// Waits of the host for the device, with VIRTUAL_NPU_CHECK=sync. virtual_npu/synchronizations.py counts them by line.
#pragma once
#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {
namespace checks {

// synchronizations.py has the same order.
enum class Wait { kCopyToHost, kCopyToDevice, kDevice, kStream, kEvent, kHostKernel };

// Counts work that the host queues on the device, such as a collective.
void queues_work();

// A launch that is counted, and its work on this thread. Nested launches and the copies of a kernel belong to it.
class QueuedWork {
 public:
  QueuedWork();
  ~QueuedWork();
  QueuedWork(const QueuedWork&) = delete;
};

// The host waits for queued work, and copies `bytes`. A copy to the device alone does not wait.
void synchronizes(Wait kind, uint64_t bytes = 0);

// A kernel that a card runs on the host: its inputs in device memory are first copied to the host.
void reads_on_host(const std::vector<const phi::TensorBase*>& inputs);

}  // namespace checks
}  // namespace virtual_npu
