#include "virtual_npu/bridge/call.h"

#include <optional>
#include <utility>

#include "paddle/phi/backends/custom/custom_context.h"
#include "virtual_npu/bridge/arguments.h"
#include "virtual_npu/observe/host_fallback.h"
#include "virtual_npu/bridge/kernel_entry.h"
#include "virtual_npu/bridge/cpu_arguments.h"
#include "virtual_npu/bridge/thunks.h"
#include "virtual_npu/observe/journal.h"
#include "virtual_npu/dry/kernel.h"
#include "virtual_npu/observe/allocation_lifetimes.h"
#include "virtual_npu/profiler/recording.h"
#include "virtual_npu/runtime/config.h"
#include "virtual_npu/runtime/stream.h"

namespace virtual_npu {
namespace {

using phi::AttributeType;
using phi::DataType;

// Every integer-class argument of a phi kernel fills one 8-byte slot and every floating-point one a register of its
// own, so this one type calls them all; slots beyond a kernel's own are never read.
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

void call_bridged(const KernelEntry& entry, Slot* slots, const double* floats) {
  const auto& context = *reinterpret_cast<const phi::DeviceContext*>(slots[0]);
  Shadows shadows(entry, context);
  slots[0] = to_slot(static_cast<phi::DeviceContext*>(shadows.cpu_context()));
  Slot* slot = slots + 1;
  for (ArgumentKind kind : entry.signature.inputs) {
    *slot = to_slot(shadows.input(kind, reinterpret_cast<const void*>(*slot)));
    ++slot;
  }
  for (AttributeType type : entry.signature.attributes) {
    if (is_float(type)) continue;
    // A promoted kernel that is asked for the 16-bit type computes in float32; the result is cast on the way out.
    if (type == AttributeType::DATA_TYPE && entry.promotes() && static_cast<DataType>(int(*slot)) == entry.promoted)
      *slot = static_cast<Slot>(DataType::FLOAT32);
    slot += type == AttributeType::PLACE ? 2 : 1;
  }
  for (ArgumentKind kind : entry.signature.outputs) {
    *slot = to_slot(shadows.output(kind, reinterpret_cast<void*>(*slot)));
    ++slot;
  }
  call_function(entry.variadic_function, slots, floats);
  shadows.finish();
}

// What is queued on the kernel's stream comes first, unless the kernel itself only queues.
void keep_order(const KernelEntry& entry, const phi::DeviceContext* context) {
  if (!any_stream_is_busy() || entry.queues) return;
  before_kernel(reinterpret_cast<C_Stream>(static_cast<const phi::CustomContext*>(context)->stream()));
}

// Computes as the kernel of `entry`, or in dry mode does not, and journals it.
template <typename Arguments, typename Compute>
void run_observed(const KernelEntry& entry, const Arguments& arguments, const Compute& compute) {
  if (!config().dry && !journal::is_kept()) return compute();
  const TensorPointers inputs = arguments.inputs(), outputs = arguments.outputs();
  std::optional<journal::Operator> line;
  if (journal::is_kept() && !journal::Operator::open() && !entry.queues) {
    line.emplace(entry.name, dtype_name(entry.dtype), placement_name(entry.placement),
                 arguments.context()->GetPlace().GetDeviceId());
    for (const phi::TensorBase* tensor : inputs) line->add_input(tensor);
  }
  if (config().dry)
    dry::call(entry, *arguments.context(), inputs, outputs, compute);
  else
    compute();
  if (!journal::is_kept()) return;
  journal::Operator* of = journal::Operator::open();
  for (const phi::TensorBase* tensor : outputs) {
    bool begins = false;
    if (tensor && phi::DenseTensor::classof(tensor))
      begins = journal_life(static_cast<phi::DenseTensor*>(const_cast<phi::TensorBase*>(tensor)),
                            of ? of->name() : entry.name);
    if (of && (line || (begins && of->puts_out_all_memory()))) of->add_output(tensor);
  }
}

// Computes as the kernel of `entry`; `arguments` are for the profiler, while it records.
template <typename Arguments, typename Compute>
void run(const KernelEntry& entry, const Arguments& arguments, const Compute& compute) {
  RecordPause pause;
  if (!profiler::recording() || profiler::KernelSpan::open()) return run_observed(entry, arguments, compute);
  profiler::KernelSpan span(entry.name, profiler::task_type(entry.name, entry.placement),
                            arguments.context()->GetPlace().GetDeviceId(), entry.queues);
  for (const phi::TensorBase* tensor : arguments.inputs()) span.inputs().add(tensor);
  const TensorPointers outputs = arguments.outputs();  // the bridge puts other pointers in their places
  span.begin();
  run_observed(entry, arguments, compute);
  for (const phi::TensorBase* tensor : outputs) span.outputs().add(tensor);
}

// Puts the caller's arguments back into a KernelContext, whatever the kernel did.
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
  Shadows shadows(entry, *context->dev_ctx_);
  ContextGuard guard(context, entry.promotes());
  context->dev_ctx_ = shadows.cpu_context();
  for (auto& tensor : context->inputs_) tensor = shadows.input(tensor);
  for (auto& tensor : context->outputs_) tensor = shadows.output(tensor);
  if (entry.promotes())
    for (size_t i = 0; i < entry.signature.attributes.size(); ++i)
      if (entry.signature.attributes[i] == AttributeType::DATA_TYPE &&
          paddle::get<DataType>(context->attrs_[i]) == entry.promoted)
        context->attrs_[i] = DataType::FLOAT32;
  entry.function(context);
  shadows.finish();
}

}  // namespace

void call_with_context(int number, phi::KernelContext* context) {
  KernelEntry& entry = entry_at(number);
  const ContextArguments arguments(context);
  if (record_call(entry) && departures_are_observed()) tell_departure(entry, arguments.inputs(), arguments.outputs());
  keep_order(entry, context->dev_ctx_);
  run(entry, arguments, [&] { call_in_context(entry, context); });
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
  const TypedArguments arguments(entry.signature, slots);
  if (record_call(entry) && departures_are_observed()) tell_departure(entry, arguments.inputs(), arguments.outputs());
  keep_order(entry, arguments.context());
  run(entry, arguments, [&] {
    if (entry.native)
      call_function(entry.variadic_function, slots, registers->floats);
    else
      call_bridged(entry, slots, registers->floats);
  });
}
