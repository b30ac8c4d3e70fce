// The profiler's record of one task on the device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/tensor_base.h"
#include "observe/placement.h"

namespace virtual_npu {
namespace profiler {

// Where a card would have run it, by msprof's names. A kernel that paddle-custom-npu does not have runs on the host,
// for which msprof has no name and records nothing on a card.
enum class TaskType : uint8_t { kAiCore, kAiVectorCore, kAiCpu, kHostCpu, kHccl, kMemcpy };
const char* name_of(TaskType type);

// The cube units of a card run matrix products, convolutions and attention; its vector units run the rest.
TaskType task_type(const std::string& kernel, Placement placement);

// Dtypes and shapes of tensors.
class Tensors {
 public:
  void add(phi::DataType dtype, const phi::DDim& dims);
  void add(const phi::TensorBase* tensor);  // ignores nullptr

  bool empty() const { return numbers_.empty(); }
  // In msprof's format: "2,3;4", "FLOAT;INT64", "ND;ND".
  std::string shapes() const;
  std::string dtypes() const;
  std::string formats() const;

 private:
  template <typename Visit>
  void for_each(const Visit& visit) const;

  std::vector<int64_t> numbers_;  // per tensor: dtype, rank, sizes
};

struct Task {
  std::string name;
  TaskType type = TaskType::kAiVectorCore;
  int device = 0;
  int stream = 0;       // runs one task at a time
  uint64_t thread = 0;  // the launching thread
  // Nanoseconds since 1970, as in Paddle. The host launches the task, then the device runs it.
  uint64_t launch_start = 0, launch_end = 0;
  uint64_t start = 0, end = 0;
  Tensors inputs, outputs;  // of kernels
  std::string call_site;    // "train.py:12", if requested
  // Of copies and collectives. For a collective, the bytes passed by the caller.
  uint64_t bytes = 0;
  // Of collectives.
  std::string group, wire_dtype, links;
  uint64_t number = 0, elements = 0;
  int ranks = 0;
};

// A device's memory in bytes when a kernel ended: allocated to tensors, and reserved by Paddle.
struct MemorySample {
  uint64_t time;
  int device;
  uint64_t allocated, reserved;
};

}  // namespace profiler
}  // namespace virtual_npu
