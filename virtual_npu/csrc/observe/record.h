// The record of what ran, and of where a machine with a card would have run it.
#pragma once
#include <string>

#include "paddle/phi/common/data_type.h"
#include "observe/placement.h"

namespace virtual_npu {

struct KernelEntry;

// Counts a call of a kernel and returns whether it did: kernels that another kernel calls are not counted, that is, none
// are while the thread has a RecordPause. In strict mode throws phi's Unimplemented for one that a card leaves to the
// host.
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
