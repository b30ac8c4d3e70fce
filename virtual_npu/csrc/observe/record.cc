#include "observe/record.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "paddle/phi/core/enforce.h"
#include "bridge/kernel_entry.h"
#include "observe/kernel_path.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

thread_local int pauses = 0;

using KernelName = std::pair<std::string, phi::DataType>;
using Calls = std::map<KernelName, std::pair<Placement, uint64_t>>;

// Operators without an entry in the kernel table.
struct OperatorCalls {
  std::mutex mutex;
  Calls calls;
};
OperatorCalls& operator_calls() {
  static auto* calls = new OperatorCalls;
  return *calls;
}

void trace(const std::string& name, phi::DataType dtype, Placement placement) {
  if (config().trace)
    std::fprintf(stderr, "virtual npu: %s %s on %s\n", name.c_str(), dtype_name(dtype).c_str(),
                 placement_name(placement));
}

}  // namespace

RecordPause::RecordPause() { ++pauses; }
RecordPause::~RecordPause() { --pauses; }

bool record_call(KernelEntry& entry) {
  if (pauses) return false;
  if (config().strict && entry.placement == Placement::kHost)
    PADDLE_THROW(common::errors::Unimplemented(
        "paddle-custom-npu registers no kernel '%s' for %s: on a card it would fall back to the host CPU, which "
        "VIRTUAL_NPU_STRICT=1 refuses. Use another operator or dtype, or unset VIRTUAL_NPU_STRICT.",
        entry.name, dtype_name(entry.dtype)));
  if (entry.placement != Placement::kHost) check_path(entry.name);
  entry.calls.fetch_add(1, std::memory_order_relaxed);
  trace(entry.name, entry.dtype, entry.placement);
  return true;
}

void record_operator(const std::string& name, phi::DataType dtype, Placement placement) {
  if (placement != Placement::kHost) check_path(name);
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  ++recorded.calls.try_emplace({name, dtype}, placement, 0).first->second.second;
  trace(name, dtype, placement);
}

}  // namespace virtual_npu

// For virtual_npu.kernel_record(): a JSON array of [name, dtype, placement, calls, path]; valid until the next call on
// the same thread.
extern "C" const char* virtual_npu_kernel_record() {
  using namespace virtual_npu;
  Calls rows;
  for (int i = 0; i < entry_count(); ++i) {
    const KernelEntry& entry = entry_at(i);
    const uint64_t calls = entry.calls.load(std::memory_order_relaxed);
    if (!calls) continue;
    auto& row = rows.try_emplace({entry.name, entry.dtype}, entry.placement, 0).first->second;
    row.second += calls;
  }
  {
    auto& recorded = operator_calls();
    std::lock_guard<std::mutex> lock(recorded.mutex);
    for (const auto& [kernel, row] : recorded.calls) rows[kernel] = row;
  }
  thread_local std::string json;
  json = "[";
  for (const auto& [kernel, row] : rows) {
    if (json.size() > 1) json += ",";
    json += "[\"" + kernel.first + "\",\"" + dtype_name(kernel.second) + "\",\"" + placement_name(row.first) +
            "\"," + std::to_string(row.second) + ",\"" +
            (row.first == Placement::kHost ? "" : path_of(kernel.first)) + "\"]";
  }
  json += "]";
  return json.c_str();
}

extern "C" void virtual_npu_reset_kernel_record() {
  using namespace virtual_npu;
  for (int i = 0; i < entry_count(); ++i) entry_at(i).calls.store(0, std::memory_order_relaxed);
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  recorded.calls.clear();
}
