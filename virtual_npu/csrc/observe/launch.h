// The single hook for all observers of the device. Kernels of the bridge and the plugin (bridge/call.cc), custom
// operators and operators of other libraries (operator_call.h) run inside a Launch, which reports them to the
// profiler and the journal.
#pragma once
#include <optional>
#include <string>

#include "paddle/phi/core/dense_tensor.h"
#include "checks/synchronizations.h"
#include "observe/journal.h"
#include "observe/placement.h"
#include "observe/profiler/recording.h"
#include "observe/record.h"
#include "runtime/config.h"

namespace virtual_npu {

// A call on the calling thread, from its launch to the end of the object's lifetime. Nested calls are not observed:
// the record pauses, and a nested Launch does nothing.
class Launch {
 public:
  // Whether there are observers; otherwise launches need no tensors.
  static bool is_observed() { return profiler::recording() || journal::is_kept() || config().counts_waits; }

  // `queues`: only enqueues work on a stream, which does not count as device work.
  Launch(const std::string& name, phi::DataType dtype, Placement placement, int device, bool queues = false);
  Launch(const Launch&) = delete;

  template <typename... Tensor>
  void add_input(const Tensor&... tensor) {
    if (line_) line_->add_input(tensor...);
    if (span_) span_->inputs().add(tensor...);
  }
  template <typename... Tensor>
  void add_output(const Tensor&... tensor) {
    if (line_) line_->add_output(tensor...);
    if (span_) span_->outputs().add(tensor...);
  }
  // The call's outputs are its allocations; add_output is not called.
  void outputs_are_its_allocations() {
    if (line_) line_->outputs_are_its_allocations();
  }
  // The launch ends and the device work begins.
  void begin() {
    if (span_) span_->begin();
  }

  // Journals the lifetime of the memory that a kernel allocated for `output`.
  void track_output(const std::string& kernel, const phi::TensorBase* output);

 private:
  RecordPause pause_;
  std::optional<checks::QueuedWork> queued_;
  std::optional<profiler::KernelSpan> span_;
  std::optional<journal::Operator> line_;
};

}  // namespace virtual_npu
