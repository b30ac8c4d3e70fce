// What the profiler keeps of one piece of work of the device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/tensor_base.h"
#include "observe/placement.h"

namespace virtual_npu {
namespace profiler {

// Where a card would have done it, by msprof's names. A kernel that paddle-custom-npu does not have is the host's, for
// which msprof has no name: on a card it leaves no trace of its own.
enum class TaskType : uint8_t { kAiCore, kAiVectorCore, kAiCpu, kHostCpu, kHccl, kMemcpy };
const char* name_of(TaskType type);

// The cube units of a card do matrix products, convolutions and attention; its vector units do the rest.
TaskType task_type(const std::string& kernel, Placement placement);

// Dtypes and shapes of tensors.
class Tensors {
 public:
  void add(phi::DataType dtype, const phi::DDim& dims);
  void add(const phi::TensorBase* tensor);  // none for nullptr

  bool empty() const { return numbers_.empty(); }
  // As msprof writes them: "2,3;4", "FLOAT;INT64", "ND;ND".
  std::string shapes() const;
  std::string dtypes() const;
  std::string formats() const;

 private:
  template <typename Visit>
  void for_each(const Visit& visit) const;

  std::vector<int64_t> numbers_;  // of each tensor: dtype, rank, sizes
};

struct Task {
  std::string name;
  TaskType type = TaskType::kAiVectorCore;
  int device = 0;
  int stream = 0;       // works on one task after the other
  uint64_t thread = 0;  // that launched it
  // Nanoseconds since 1970, as Paddle counts them. The host launches, then the device works.
  uint64_t launch_start = 0, launch_end = 0;
  uint64_t start = 0, end = 0;
  Tensors inputs, outputs;  // of kernels
  std::string call_site;    // "train.py:12", if asked for
  // Of copies and collectives; `bytes` of a collective is what the caller handed over.
  uint64_t bytes = 0;
  // Of collectives.
  std::string group, wire_dtype, links;
  uint64_t number = 0, elements = 0;
  int ranks = 0;
};

// Bytes of a device's memory when a kernel ended: of tensors, and of what Paddle holds to give to tensors.
struct MemorySample {
  uint64_t time;
  int device;
  uint64_t allocated, reserved;
};

}  // namespace profiler
}  // namespace virtual_npu
