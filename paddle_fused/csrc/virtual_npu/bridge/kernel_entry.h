// What the bridge knows about each kernel that it put into Paddle's kernel table.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/core/kernel_factory.h"

namespace virtual_npu {

// Kinds of tensor arguments that phi kernels take.
enum class Argument : uint8_t {
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

// The order of a kernel's arguments behind the device context. Every one is one 8-byte integer slot, except a Place,
// which takes two, and floating-point attributes, which travel in registers of their own.
struct Signature {
  std::vector<Argument> inputs;
  std::vector<phi::AttributeType> attributes;
  std::vector<Argument> outputs;
  int integer_slots = 1;

  static constexpr int kMaxIntegerSlots = 32;

  // False if the kernel has an argument the bridge cannot pass on.
  bool read(const phi::KernelArgsDef& definition);
};

// Where the kernel would run on a machine with a card: on the NPU's cores, on its AICPU (double precision), or, as
// paddle-custom-npu registers no kernel of that name and type, on the host.
enum class Placement : uint8_t { kNpu, kAicpu, kHost };

struct KernelEntry {
  std::string name;
  phi::DataType dtype = phi::DataType::UNDEFINED;
  Placement placement = Placement::kNpu;
  phi::KernelFn function;           // called by the static executor, with a KernelContext
  void* variadic_function = nullptr;  // called by dygraph, with typed arguments
  bool native = false;              // written for npu tensors: only recorded on its way, not bridged
  // For a 16-bit type without a CPU kernel: tensors of this type are cast to float32 and back.
  phi::DataType promoted = phi::DataType::UNDEFINED;
  Signature signature;
  std::atomic<uint64_t> calls{0};

  bool promotes() const { return promoted != phi::DataType::UNDEFINED; }
};

// Counts the call; in strict mode throws phi::Unimplemented for a kernel that a card leaves to the host.
void record_call(KernelEntry& entry);

// Counts a call of a custom operator, which Paddle dispatches without asking the kernel table.
void record_operator(const char* name, phi::DataType dtype);

// The entry's place in the table is its thunk's number. Entries are made while the plugin is loaded and never removed.
KernelEntry& new_entry(const std::string& name, phi::DataType dtype);
KernelEntry& entry_at(int number);
int entry_count();

}  // namespace virtual_npu
