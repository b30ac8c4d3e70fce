// The bridge's record of a kernel that it added to Paddle's kernel table.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/core/kernel_factory.h"
#include "observe/placement.h"

namespace virtual_npu {

// Whether an attribute is passed in a floating-point register.
inline bool is_float(phi::AttributeType type) {
  return type == phi::AttributeType::FLOAT32 || type == phi::AttributeType::FLOAT64;
}

// Kinds of tensor arguments of phi kernels.
enum class ArgumentKind : uint8_t {
  kTensor,
  kOptionalTensor,
  kTensorList,
  kOptionalTensorList,
  kAnyTensorList,
  kSelectedRows,
  kOptionalSelectedRows,
  kSelectedRowsList,
  kTensorArray,
};

// The order of a kernel's arguments after the device context. Each uses one 8-byte integer slot, except a Place,
// which uses two, and floating-point attributes, which are passed in separate registers.
struct Signature {
  std::vector<ArgumentKind> inputs;
  std::vector<phi::AttributeType> attributes;
  std::vector<ArgumentKind> outputs;
  int integer_slots = 1;

  static constexpr int kMaxIntegerSlots = 32;

  // Returns false if the kernel has an argument that the bridge cannot pass.
  bool read(const phi::KernelArgsDef& definition);
};

struct KernelEntry {
  std::string name;
  phi::DataType dtype = phi::DataType::UNDEFINED;
  Placement placement = Placement::kNpu;
  phi::KernelFn function;           // called by the static executor, with a KernelContext
  void* variadic_function = nullptr;  // called by dygraph, with typed arguments
  bool queues = false;              // only enqueues work on its stream: collectives
  bool view = false;                // of the strided layout: returns a view of its input if possible
  bool one_thread = false;          // not to be computed on several threads
  bool native = false;              // written for npu tensors: observed, not bridged
  bool generic = false;             // Paddle's kernel for all custom devices: seen by the checks only
  bool without_tensors = false;     // of the self-test (calling_convention.cc): only called
  // For a 16-bit type without a CPU kernel: tensors of this type are cast to float32 and back.
  phi::DataType promoted = phi::DataType::UNDEFINED;
  Signature signature;
  std::atomic<uint64_t> calls{0};
  const char* aclop = nullptr;      // the aclop type of the kernel on a card, or null

  bool promotes() const { return promoted != phi::DataType::UNDEFINED; }
};

// The entry's position in the table is its thunk's number. Entries are created while the plugin is loaded and never
// removed.
KernelEntry& new_entry(const std::string& name, phi::DataType dtype);
KernelEntry& entry_at(int number);
int entry_count();

}  // namespace virtual_npu
