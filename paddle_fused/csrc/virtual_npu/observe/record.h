// The record of what ran, and of where a machine with a card would have run it.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/no_compute_guard.h"
#include "paddle/phi/common/data_type.h"

namespace paddle {
class Tensor;
}

namespace virtual_npu {

struct KernelEntry;
namespace profiler {
class KernelSpan;
}
namespace journal {
class Operator;
}

// Where a kernel would run on a machine with a card: on the NPU's cores, on its AICPU (double precision, and a few
// kernels of integers), or, as paddle-custom-npu registers no kernel of that name and type, on the host.
enum class Placement : uint8_t { kNpu, kAicpu, kHost };
Placement placement_of(const std::string& name, phi::DataType dtype);
const char* placement_name(Placement placement);

// A kernel may serve every dtype with one entry: "any".
std::string dtype_name(phi::DataType dtype);

// Counts the call; in strict mode throws phi's Unimplemented for a kernel that a card leaves to the host. Kernels that
// another kernel calls are its own affair: while a RecordPause exists, the thread's calls are not recorded. Returns
// whether it was.
bool record_call(KernelEntry& entry);

class RecordPause {
 public:
  RecordPause();
  ~RecordPause();
};

// Counts a call of a custom operator, which Paddle dispatches without asking the kernel table, and pauses the record
// while the operator computes. To be made when the operator has accepted its arguments. The profiler sees `inputs`,
// and as outputs what goes through `returns`.
class OperatorCall {
 public:
  OperatorCall(const std::string& name, phi::DataType dtype, std::initializer_list<const paddle::Tensor*> inputs);
  ~OperatorCall();

  std::vector<paddle::Tensor> returns(std::vector<paddle::Tensor> outputs);

 private:
  RecordPause pause_;
  std::unique_ptr<profiler::KernelSpan> span_;
  std::unique_ptr<journal::Operator> line_;
  std::unique_ptr<paddle_fused::kernels::Idle> idle_;  // in dry mode
};

}  // namespace virtual_npu
