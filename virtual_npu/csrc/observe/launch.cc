#include "observe/launch.h"

#include "observe/allocation_lifetimes.h"

namespace virtual_npu {

Launch::Launch(const std::string& name, phi::DataType dtype, Placement placement, int device, bool queues) {
  if (config().counts_waits) queued_.emplace();
  if (profiler::recording() && !profiler::KernelSpan::open())
    span_.emplace(name, profiler::task_type(name, placement), device, queues);
  if (journal::is_kept() && !journal::Operator::open() && !queues)
    line_.emplace(name, dtype_name(dtype), placement_name(placement), device);
}

void Launch::track_output(const std::string& kernel, const phi::TensorBase* output) {
  if (!journal::is_kept() || !output || !phi::DenseTensor::classof(output)) return;
  journal::Operator* outer = journal::Operator::open();
  auto* tensor = static_cast<phi::DenseTensor*>(const_cast<phi::TensorBase*>(output));
  const bool is_new = track_lifetime(tensor, outer ? outer->name() : kernel);
  if (is_new && !line_ && outer && outer->puts_out_its_allocations()) outer->add_output(output);
}

}  // namespace virtual_npu
