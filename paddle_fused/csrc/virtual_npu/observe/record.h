// The record of what ran, and of where a machine with a card would have run it.
#pragma once
#include <string>

#include "paddle/phi/common/data_type.h"
#include "virtual_npu/observe/placement.h"

namespace virtual_npu {

struct KernelEntry;

// Counts a call of a kernel; in strict mode throws phi's Unimplemented for one that a card leaves to the host. Kernels
// that another kernel calls are its own affair: while a RecordPause exists, the thread's calls are not recorded. Returns
// whether it was.
bool record_call(KernelEntry& entry);

// Counts a call of an operator that Paddle dispatches without asking the kernel table.
void record_operator(const std::string& name, phi::DataType dtype, Placement placement);

class RecordPause {
 public:
  RecordPause();
  ~RecordPause();
  RecordPause(const RecordPause&) = delete;
};

}  // namespace virtual_npu
