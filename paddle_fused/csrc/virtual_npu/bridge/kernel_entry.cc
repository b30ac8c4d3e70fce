#include "virtual_npu/bridge/kernel_entry.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/phi/core/tensor_array.h"
#include "virtual_npu/bridge/thunks.h"
#include "virtual_npu/runtime/config.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;
using phi::DenseTensor;
using phi::SelectedRows;
using phi::TensorArray;

bool is_float(AttributeType type) { return type == AttributeType::FLOAT32 || type == AttributeType::FLOAT64; }

// Kernels that paddle-custom-npu registers, read from its sources: {kernel, dtype}.
const std::set<std::pair<std::string, std::string>>& card_kernels() {
  static const auto* kernels = new std::set<std::pair<std::string, std::string>>{
#include "card_kernels.inc"
  };
  return *kernels;
}

// A kernel may serve every dtype with one entry.
std::string dtype_name(phi::DataType dtype) {
  return dtype == phi::DataType::ALL_DTYPE ? "any" : phi::DataTypeToString(dtype);
}

bool on_card(const std::string& name, phi::DataType dtype) {
  const auto& kernels = card_kernels();
  if (dtype != phi::DataType::ALL_DTYPE) return kernels.count({name, dtype_name(dtype)}) > 0;
  const auto any = kernels.lower_bound({name, ""});
  return any != kernels.end() && any->first == name;
}

Placement placement_of(const std::string& name, phi::DataType dtype) {
  if (!on_card(name, dtype)) return Placement::kHost;
  const bool wide = dtype == phi::DataType::FLOAT64 || dtype == phi::DataType::COMPLEX128;
  return wide ? Placement::kAicpu : Placement::kNpu;
}

const char* placement_name(Placement placement) {
  return placement == Placement::kNpu ? "npu" : placement == Placement::kAicpu ? "aicpu" : "host";
}

std::deque<KernelEntry>& entries() {
  static auto* entries = new std::deque<KernelEntry>;
  return *entries;
}

using KernelName = std::pair<std::string, phi::DataType>;

struct OperatorCalls {
  std::mutex mutex;
  std::map<KernelName, uint64_t> calls;
};
OperatorCalls& operator_calls() {
  static auto* calls = new OperatorCalls;
  return *calls;
}

}  // namespace

bool Signature::read(const phi::KernelArgsDef& definition) {
  static const std::unordered_map<std::type_index, Argument> input_kinds = {
      {typeid(DenseTensor), Argument::kTensor},
      {typeid(paddle::optional<DenseTensor>), Argument::kOptionalTensor},
      {typeid(std::vector<const DenseTensor*>), Argument::kTensorList},
      {typeid(paddle::optional<std::vector<const DenseTensor*>>), Argument::kOptionalTensorList},
      {typeid(std::vector<const phi::TensorBase*>), Argument::kAnyTensorList},
      {typeid(SelectedRows), Argument::kSelectedRows},
      {typeid(paddle::optional<SelectedRows>), Argument::kOptionalSelectedRows},
      {typeid(std::vector<const SelectedRows*>), Argument::kSelectedRowsList},
      {typeid(TensorArray), Argument::kTensorArray},
  };
  static const std::unordered_map<std::type_index, Argument> output_kinds = {
      {typeid(DenseTensor*), Argument::kTensor},
      {typeid(std::vector<DenseTensor*>), Argument::kTensorList},
      {typeid(SelectedRows*), Argument::kSelectedRows},
      {typeid(TensorArray*), Argument::kTensorArray},
  };
  int floats = 0;
  for (const auto& input : definition.input_defs()) {
    const auto kind = input_kinds.find(input.type_index);
    if (kind == input_kinds.end()) return false;
    inputs.push_back(kind->second);
    ++integer_slots;
  }
  for (const auto& attribute : definition.attribute_defs()) {
    attributes.push_back(attribute.type_index);
    if (is_float(attribute.type_index)) {
      ++floats;
    } else if (attribute.type_index == AttributeType::PLACE) {
      // With a single register left a two-slot argument goes to the stack whole, out of order.
      if (integer_slots == kIntegerRegisters - 1) return false;
      integer_slots += 2;
    } else {
      ++integer_slots;
    }
  }
  for (const auto& output : definition.output_defs()) {
    const auto kind = output_kinds.find(output.type_index);
    if (kind == output_kinds.end()) return false;
    outputs.push_back(kind->second);
    ++integer_slots;
  }
  return floats <= kFloatRegisters && integer_slots <= kMaxIntegerSlots;
}

KernelEntry& new_entry(const std::string& name, phi::DataType dtype) {
  KernelEntry& entry = entries().emplace_back();
  entry.name = name;
  entry.dtype = dtype;
  entry.placement = placement_of(name, dtype);
  return entry;
}

KernelEntry& entry_at(int number) { return entries()[number]; }
int entry_count() { return static_cast<int>(entries().size()); }

void record_call(KernelEntry& entry) {
  entry.calls.fetch_add(1, std::memory_order_relaxed);
  if (config().trace)
    std::fprintf(stderr, "virtual npu: %s %s on %s\n", entry.name.c_str(),
                 dtype_name(entry.dtype).c_str(), placement_name(entry.placement));
  if (config().strict && entry.placement == Placement::kHost)
    PADDLE_THROW(common::errors::Unimplemented(
        "paddle-custom-npu registers no kernel '%s' for %s: on a card it would fall back to the host CPU, which "
        "VIRTUAL_NPU_STRICT=1 refuses. Use another operator or dtype, or unset VIRTUAL_NPU_STRICT.",
        entry.name, dtype_name(entry.dtype)));
}

void record_operator(const char* name, phi::DataType dtype) {
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  ++recorded.calls[{name, dtype}];
}

}  // namespace virtual_npu

// For paddle_fused.virtual_npu.kernel_record(): a JSON array of [name, dtype, placement, calls]; valid until the next
// call on the same thread.
extern "C" const char* virtual_npu_kernel_record() {
  using namespace virtual_npu;
  std::map<KernelName, std::pair<Placement, uint64_t>> rows;
  for (const KernelEntry& entry : entries()) {
    const uint64_t calls = entry.calls.load(std::memory_order_relaxed);
    if (!calls) continue;
    auto& row = rows.try_emplace({entry.name, entry.dtype}, entry.placement, 0).first->second;
    row.second += calls;
  }
  {
    auto& recorded = operator_calls();
    std::lock_guard<std::mutex> lock(recorded.mutex);
    for (const auto& [kernel, calls] : recorded.calls) rows[kernel] = {Placement::kNpu, calls};
  }
  thread_local std::string json;
  json = "[";
  for (const auto& [kernel, row] : rows) {
    if (json.size() > 1) json += ",";
    json += "[\"" + kernel.first + "\",\"" + dtype_name(kernel.second) + "\",\"" + placement_name(row.first) +
            "\"," + std::to_string(row.second) + "]";
  }
  json += "]";
  return json.c_str();
}

extern "C" void virtual_npu_reset_kernel_record() {
  using namespace virtual_npu;
  for (KernelEntry& entry : entries()) entry.calls.store(0, std::memory_order_relaxed);
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  recorded.calls.clear();
}
