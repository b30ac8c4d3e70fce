#include "virtual_npu/observe/record.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/kernel_factory.h"
#include "virtual_npu/bridge/kernel_entry.h"
#include "virtual_npu/observe/journal.h"
#include "virtual_npu/profiler/recording.h"
#include "virtual_npu/runtime/config.h"
#include "virtual_npu/runtime/device.h"

namespace virtual_npu {
namespace {

using Kernels = std::set<std::pair<std::string, std::string>>;  // {kernel, dtype}
using Listed = std::pair<const char*, const char*>;             // a compiler is slow with thousands of std::string

// Kernels that paddle-custom-npu registers, read from its sources.
const Kernels& card_kernels() {
  static constexpr Listed kListed[] = {
#include "card_kernels.inc"
  };
  static const auto* kernels = new Kernels(std::begin(kListed), std::end(kListed));
  return *kernels;
}

// Of those, the ones that CANN's documents give to the AICPU, beside all of double precision.
const Kernels& aicpu_kernels() {
  static constexpr Listed kListed[] = {
#include "aicpu_kernels.inc"
  };
  static const auto* kernels = new Kernels(std::begin(kListed), std::end(kListed));
  return *kernels;
}

// Paddle has kernels of its own for every custom device, such as those of collectives; which ones depends on the release.
bool in_paddle(const std::string& name, phi::DataType dtype) {
  const auto& kernels = phi::KernelFactory::Instance().kernels();
  const auto found = kernels.find(name);
  if (found == kernels.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const auto& one) {
    const phi::KernelKey& key = one.first;
    return key.backend() == phi::Backend::CUSTOM && key.layout() != phi::DataLayout::STRIDED &&
           (dtype == phi::DataType::ALL_DTYPE || key.dtype() == dtype);
  });
}

bool on_card(const std::string& name, phi::DataType dtype) {
  if (in_paddle(name, dtype)) return true;
  const auto& kernels = card_kernels();
  if (dtype != phi::DataType::ALL_DTYPE) return kernels.count({name, dtype_name(dtype)}) > 0;
  const auto any = kernels.lower_bound({name, ""});
  return any != kernels.end() && any->first == name;
}

void trace(const std::string& name, phi::DataType dtype, Placement placement) {
  if (config().trace)
    std::fprintf(stderr, "virtual npu: %s %s on %s\n", name.c_str(), dtype_name(dtype).c_str(),
                 placement_name(placement));
}

thread_local int pauses = 0;

using KernelName = std::pair<std::string, phi::DataType>;

struct OperatorCalls {
  std::mutex mutex;
  std::map<KernelName, std::pair<Placement, uint64_t>> calls;
};
OperatorCalls& operator_calls() {
  static auto* calls = new OperatorCalls;
  return *calls;
}

void count_operator(const std::string& name, phi::DataType dtype, Placement placement) {
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  ++recorded.calls.try_emplace({name, dtype}, placement, 0).first->second.second;
  trace(name, dtype, placement);
}

}  // namespace

std::string dtype_name(phi::DataType dtype) {
  return dtype == phi::DataType::ALL_DTYPE ? "any" : phi::DataTypeToString(dtype);
}

const char* placement_name(Placement placement) {
  return placement == Placement::kNpu ? "npu" : placement == Placement::kAicpu ? "aicpu" : "host";
}

Placement placement_of(const std::string& name, phi::DataType dtype) {
  if (!on_card(name, dtype)) return Placement::kHost;
  const bool wide = dtype == phi::DataType::FLOAT64 || dtype == phi::DataType::COMPLEX128;
  return wide || aicpu_kernels().count({name, dtype_name(dtype)}) ? Placement::kAicpu : Placement::kNpu;
}

RecordPause::RecordPause() { ++pauses; }
RecordPause::~RecordPause() { --pauses; }

bool record_call(KernelEntry& entry) {
  if (pauses) return false;
  if (config().strict && entry.placement == Placement::kHost)
    PADDLE_THROW(common::errors::Unimplemented(
        "paddle-custom-npu registers no kernel '%s' for %s: on a card it would fall back to the host CPU, which "
        "VIRTUAL_NPU_STRICT=1 refuses. Use another operator or dtype, or unset VIRTUAL_NPU_STRICT.",
        entry.name, dtype_name(entry.dtype)));
  entry.calls.fetch_add(1, std::memory_order_relaxed);
  trace(entry.name, entry.dtype, entry.placement);
  return true;
}

namespace {

std::unique_ptr<profiler::KernelSpan> open_span(const std::string& name, Placement placement) {
  if (profiler::KernelSpan::open()) return nullptr;
  return std::make_unique<profiler::KernelSpan>(name, profiler::task_type(name, placement), current_device());
}

std::unique_ptr<journal::Operator> open_line(const std::string& name, phi::DataType dtype, Placement placement) {
  if (!journal::is_kept() || journal::Operator::open()) return nullptr;
  return std::make_unique<journal::Operator>(name, dtype_name(dtype), placement_name(placement), current_device());
}

std::unique_ptr<paddle_fused::kernels::Idle> idle_if_dry() {
  return config().dry ? std::make_unique<paddle_fused::kernels::Idle>() : nullptr;
}

// Of a host operator of another library.
thread_local std::unique_ptr<profiler::KernelSpan> host_span;
thread_local std::unique_ptr<journal::Operator> host_line;
thread_local std::unique_ptr<paddle_fused::kernels::Idle> host_idle;

}  // namespace

OperatorCall::OperatorCall(const std::string& name, phi::DataType dtype,
                           std::initializer_list<const paddle::Tensor*> inputs) {
  count_operator(name, dtype, Placement::kNpu);
  line_ = open_line(name, dtype, Placement::kNpu);
  idle_ = idle_if_dry();
  if (profiler::recording()) span_ = open_span(name, Placement::kNpu);
  for (const paddle::Tensor* tensor : inputs) {
    if (!tensor->defined()) continue;
    if (line_) line_->add_input(tensor->dtype(), tensor->dims());
    if (span_) span_->inputs().add(tensor->dtype(), tensor->dims());
  }
  if (span_) span_->begin();
}

OperatorCall::~OperatorCall() = default;

std::vector<paddle::Tensor> OperatorCall::returns(std::vector<paddle::Tensor> outputs) {
  for (const paddle::Tensor& tensor : outputs) {
    if (!tensor.defined()) continue;
    if (line_) line_->add_output(tensor.dtype(), tensor.dims());
    if (span_) span_->outputs().add(tensor.dtype(), tensor.dims());
  }
  return outputs;
}

}  // namespace virtual_npu

// For paddle_fused.virtual_npu.kernel_record(): a JSON array of [name, dtype, placement, calls]; valid until the next
// call on the same thread.
extern "C" const char* virtual_npu_kernel_record() {
  using namespace virtual_npu;
  std::map<KernelName, std::pair<Placement, uint64_t>> rows;
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
            "\"," + std::to_string(row.second) + "]";
  }
  json += "]";
  return json.c_str();
}

// A host operator of another library computes on npu tensors between these two calls; dtype is a phi::DataType, and
// `inputs` are `count` of its tensors.
extern "C" void virtual_npu_begin_host_operator(const char* name, int dtype, const phi::TensorBase* const* inputs,
                                                int count) {
  using namespace virtual_npu;
  if (config().strict)
    PADDLE_THROW(common::errors::Unimplemented(
        "%s is an operator of the host: a card has none of that name, and VIRTUAL_NPU_STRICT=1 refuses it. Move the "
        "tensors to the CPU, or unset VIRTUAL_NPU_STRICT.",
        name));
  count_operator(name, static_cast<phi::DataType>(dtype), Placement::kHost);
  ++pauses;
  if (profiler::recording()) host_span = open_span(name, Placement::kHost);
  if (host_span) host_span->begin();
  host_line = open_line(name, static_cast<phi::DataType>(dtype), Placement::kHost);
  if (host_line) host_line->put_out_all_memory();
  for (int i = 0; host_line && i < count; ++i) host_line->add_input(inputs[i]);
  host_idle = idle_if_dry();
}
extern "C" void virtual_npu_end_host_operator() {
  virtual_npu::host_idle.reset();
  virtual_npu::host_line.reset();
  virtual_npu::host_span.reset();
  --virtual_npu::pauses;
}

extern "C" void virtual_npu_reset_kernel_record() {
  using namespace virtual_npu;
  for (int i = 0; i < entry_count(); ++i) entry_at(i).calls.store(0, std::memory_order_relaxed);
  auto& recorded = operator_calls();
  std::lock_guard<std::mutex> lock(recorded.mutex);
  recorded.calls.clear();
}
