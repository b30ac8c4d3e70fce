// The record of kernel calls, and where a machine with a card would have run them.
#pragma once
#include <string>

#include "paddle/phi/common/data_type.h"
#include "observe/placement.h"

namespace virtual_npu {

struct KernelEntry;

// Counts a kernel call. Returns false without counting it if another kernel makes the call, that is, while the thread
// has a RecordPause. In strict mode, throws phi's Unimplemented for a kernel that a card runs on the host.
bool record_call(KernelEntry& entry);

// Counts a call of an operator that Paddle dispatches without the kernel table.
void record_operator(const std::string& name, phi::DataType dtype, Placement placement);

class RecordPause {
 public:
  RecordPause();
  ~RecordPause();
  RecordPause(const RecordPause&) = delete;
};

}  // namespace virtual_npu
