#include "bridge/call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "paddle/phi/backends/custom/custom_context.h"
#include "bridge/arguments.h"
#include "bridge/assigned_part.h"
#include "bridge/cpu_arguments.h"
#include "bridge/deferred_call.h"
#include "bridge/kernel_entry.h"
#include "bridge/thunks.h"
#include "checks/launch.h"
#include "checks/synchronizations.h"
#include "dry/kernel.h"
#include "kernels/one_thread_guard.h"
#include "observe/aclop.h"
#include "observe/host_fallback.h"
#include "observe/launch.h"
#include "observe/refusal.h"
#include "runtime/config.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;
using phi::DataType;

// Every integer-class argument of a phi kernel uses one 8-byte slot, and every floating-point argument a separate
// register. One type therefore suffices to call all kernels; slots beyond a kernel's arguments are never read.
constexpr int kSlots = Signature::kMaxIntegerSlots;
using Slot = uint64_t;

template <size_t... I, size_t... F>
void call_function(void* function, const Slot* slots, const double* floats, std::index_sequence<I...>,
                   std::index_sequence<F...>) {
  using Function = void (*)(decltype((void)I, Slot())..., decltype((void)F, double())...);
  reinterpret_cast<Function>(function)(slots[I]..., floats[F]...);
}

void call_function(void* function, const Slot* slots, const double* floats) {
  call_function(function, slots, floats, std::make_index_sequence<kSlots>(),
                std::make_index_sequence<kFloatRegisters>());
}

template <typename T>
Slot to_slot(T* pointer) {
  return reinterpret_cast<Slot>(pointer);
}

// Leaves the caller's slots unchanged, because the checks may compute a kernel again.
void call_bridged(const KernelEntry& entry, const Slot* arguments, const double* floats) {
  Slot slots[kSlots];
  std::copy(arguments, arguments + entry.signature.integer_slots, slots);
  const auto& context = *reinterpret_cast<const phi::DeviceContext*>(slots[0]);
  CpuArguments cpu(entry, context);
  slots[0] = to_slot(static_cast<phi::DeviceContext*>(cpu.cpu_context()));
  Slot* slot = slots + 1;
  for (ArgumentKind kind : entry.signature.inputs) {
    *slot = to_slot(cpu.input(kind, reinterpret_cast<const void*>(*slot)));
    ++slot;
  }
  for (AttributeType type : entry.signature.attributes) {
    if (is_float(type)) continue;
    // If the 16-bit type is requested from a promoted kernel, the kernel computes in float32 and the result is cast.
    if (type == AttributeType::DATA_TYPE && entry.promotes() && static_cast<DataType>(int(*slot)) == entry.promoted)
      *slot = static_cast<Slot>(DataType::FLOAT32);
    slot += type == AttributeType::PLACE ? 2 : 1;
  }
  for (ArgumentKind kind : entry.signature.outputs) {
    *slot = to_slot(cpu.output(kind, reinterpret_cast<void*>(*slot)));
    ++slot;
  }
  call_function(entry.variadic_function, slots, floats);
  cpu.finish();
}

// A call in dygraph's form.
void call_typed(const KernelEntry& entry, const Slot* slots, const double* floats) {
  if (entry.native)
    call_function(entry.variadic_function, slots, floats);
  else
    call_bridged(entry, slots, floats);
}

// Waits for earlier work on the kernel's stream, unless the kernel itself only enqueues work.
void keep_order(const KernelEntry& entry, const phi::DeviceContext* context) {
  if (!any_stream_is_busy() || entry.queues) return;
  before_kernel(reinterpret_cast<C_Stream>(static_cast<const phi::CustomContext*>(context)->stream()));
}

// The effect of a refused kernel: allocated but uninitialized outputs.
void allocate_outputs(const KernelEntry& entry, const phi::DeviceContext& context, const TensorPointers& outputs) {
  for (const phi::TensorBase* output : outputs) {
    if (!dense(output) || dense(output)->numel() < 0) continue;
    // AdamW's powers of beta are written in place, in host memory.
    if (dense(output)->initialized() && dense(output)->place().GetType() == phi::AllocationType::CPU) continue;
    const DataType dtype = output->dtype() == DataType::UNDEFINED ? entry.dtype : output->dtype();
    context.Alloc(const_cast<phi::TensorBase*>(output), dtype);
  }
}

// Computes the kernel under the checks of VIRTUAL_NPU_CHECK. Collectives are checked where they are issued, and views
// read no memory.
template <typename Arguments, typename Compute>
void compute_checked(const KernelEntry& entry, const Arguments& arguments, const TensorPointers& inputs,
                     const TensorPointers& outputs, const Compute& compute) {
  if (!config().checks || entry.queues || entry.view) return compute();
  const auto& context = static_cast<const phi::CustomContext&>(*arguments.context());
  checks::run_kernel(entry.name, context.stream(), inputs, outputs, assigned_part(entry, arguments), compute);
}

// Every kernel starts here: it is recorded, ordered after earlier work, observed, and computed, or handled by
// dry::call in dry mode. A refused kernel returns before it is observed.
template <typename Arguments, typename Compute, typename Defer>
void launch(KernelEntry& entry, const Arguments& arguments, const Compute& compute, const Defer& is_deferred) {
  if (!entry.generic && record_call(entry)) {
    report_host_fallback(entry, arguments);
    if (config().counts_waits && entry.placement == Placement::kHost) checks::reads_on_host(inputs_of(arguments));
    if (entry.aclop) before_aclop(entry.name, entry.aclop);
    if (refuses_call(entry.name, entry.dtype))
      return allocate_outputs(entry, *arguments.context(), outputs_of(arguments));
  }
  if (config().defer && is_deferred()) return;
  keep_order(entry, arguments.context());
  std::optional<paddle_fused::kernels::OneThreadGuard> one_thread;
  if (entry.one_thread) one_thread.emplace();
  if (!config().dry && !config().checks && !Launch::is_observed()) {
    const RecordPause pause;
    return compute();
  }
  // The bridge temporarily replaces these pointers.
  const TensorPointers inputs = inputs_of(arguments), outputs = outputs_of(arguments);
  Launch launch(entry.name, entry.dtype, entry.placement, arguments.context()->GetPlace().GetDeviceId(), entry.queues);
  for (const phi::TensorBase* tensor : inputs) launch.add_input(tensor);
  launch.begin();
  if (config().dry)
    dry::call(entry, *arguments.context(), inputs, outputs, compute);
  else
    compute_checked(entry, arguments, inputs, outputs, compute);
  for (const phi::TensorBase* tensor : outputs) launch.track_output(entry.name, tensor);
  for (const phi::TensorBase* tensor : outputs) launch.add_output(tensor);
}

// Enqueues the kernel on its stream. Returns false if it must compute at its launch.
bool defer(KernelEntry& entry, const Slot* slots, const double* floats) {
  const auto call = DeferredCall::of(entry, slots, floats);
  if (!call) return false;
  const auto* context = reinterpret_cast<const phi::CustomContext*>(slots[0]);
  const int device = context->GetPlace().GetDeviceId();
  stream_of(reinterpret_cast<C_Stream>(context->stream()))->submit([&entry, call, device] {
    choose_device(device);
    std::optional<paddle_fused::kernels::OneThreadGuard> one_thread;
    if (entry.one_thread) one_thread.emplace();
    const RecordPause pause;
    call_typed(entry, call->slots(), call->floats());
    call->deliver();
  });
  return true;
}

// Restores the caller's arguments in a KernelContext, even after an exception.
class ContextGuard {
 public:
  ContextGuard(phi::KernelContext* context, bool attributes_change)
      : context_(context), device_(context->dev_ctx_), inputs_(context->inputs_), outputs_(context->outputs_) {
    if (attributes_change) attributes_ = context->attrs_;
  }
  ~ContextGuard() {
    context_->dev_ctx_ = device_;
    context_->inputs_ = inputs_;
    context_->outputs_ = outputs_;
    if (attributes_) context_->attrs_ = *attributes_;
  }

 private:
  phi::KernelContext* context_;
  phi::DeviceContext* device_;
  decltype(phi::KernelContext::inputs_) inputs_;
  decltype(phi::KernelContext::outputs_) outputs_;
  std::optional<decltype(phi::KernelContext::attrs_)> attributes_;
};

void call_in_context(const KernelEntry& entry, phi::KernelContext* context) {
  if (entry.native) return entry.function(context);
  CpuArguments cpu(entry, *context->dev_ctx_);
  ContextGuard guard(context, entry.promotes());
  context->dev_ctx_ = cpu.cpu_context();
  for (auto& tensor : context->inputs_) tensor = cpu.input(tensor);
  for (auto& tensor : context->outputs_) tensor = cpu.output(tensor);
  if (entry.promotes())
    for (size_t i = 0; i < entry.signature.attributes.size(); ++i)
      if (entry.signature.attributes[i] == AttributeType::DATA_TYPE &&
          paddle::get<DataType>(context->attrs_[i]) == entry.promoted)
        context->attrs_[i] = DataType::FLOAT32;
  entry.function(context);
  cpu.finish();
}

}  // namespace

void call_with_context(int number, phi::KernelContext* context) {
  KernelEntry& entry = entry_at(number);
  launch(entry, ContextArguments(context), [&] { call_in_context(entry, context); }, [] { return false; });
}

}  // namespace virtual_npu

extern "C" void virtual_npu_bridge_entry(int number, const virtual_npu::Registers* registers,
                                         const uint64_t* stack_arguments) {
  using namespace virtual_npu;
  KernelEntry& entry = entry_at(number);
  Slot slots[kSlots] = {};
  const int used = entry.signature.integer_slots;
  for (int i = 0; i < used; ++i)
    slots[i] = i < kIntegerRegisters ? registers->integers[i] : stack_arguments[i - kIntegerRegisters];
  if (entry.without_tensors) return call_function(entry.variadic_function, slots, registers->floats);
  const double* floats = registers->floats;
  launch(entry, TypedArguments(entry.signature, slots), [&] { call_typed(entry, slots, floats); },
         [&] { return defer(entry, slots, floats); });
}
