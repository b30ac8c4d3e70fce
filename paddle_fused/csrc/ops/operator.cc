#include "ops/operator.h"

#include <dlfcn.h>

#include <algorithm>
#include <sstream>

#include "paddle/phi/core/enforce.h"

namespace paddle_fused::ops {
namespace {

bool is_npu(const phi::Place& place) {
  return place.GetType() == phi::AllocationType::CUSTOM && place.GetDeviceType() == "npu";
}

// The virtual NPU's plugin, if it is this process's npu; the plugin for cards has the same file name.
struct VirtualNpu {
  void (*begin_host_operator)(const char* name, int dtype, const phi::TensorBase* const* inputs, int count) = nullptr;
  void (*end_host_operator)() = nullptr;

  VirtualNpu() {
    void* plugin = dlopen("libpaddle-custom-npu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!plugin) return;
    begin_host_operator =
        reinterpret_cast<decltype(begin_host_operator)>(dlsym(plugin, "virtual_npu_begin_host_operator"));
    end_host_operator = reinterpret_cast<decltype(end_host_operator)>(dlsym(plugin, "virtual_npu_end_host_operator"));
  }
};
const VirtualNpu& virtual_npu_plugin() {
  static const VirtualNpu plugin;
  return plugin;
}

bool in_host_memory(const phi::Place& place) {
  return place.GetType() == phi::AllocationType::CPU || (is_npu(place) && virtual_npu_plugin().begin_host_operator);
}

}  // namespace

void refuse(const char* op, const std::string& sentence) {
  PADDLE_THROW(common::errors::InvalidArgument("%s", std::string(op) + ": " + sentence));
}

void check_defined(const char* op, std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments)
    if (!argument.tensor.defined()) refuse(op, std::string(argument.name) + " is missing; accepted: a tensor.");
}

void check_places(const char* op, std::initializer_list<Argument> arguments) {
  check_defined(op, arguments);
  bool together = true;
  std::ostringstream where;
  for (const Argument& argument : arguments) {
    if (!argument.tensor.defined()) refuse(op, std::string(argument.name) + " is missing; accepted: a tensor.");
    const phi::Place& place = argument.tensor.place();
    together = together && in_host_memory(place) && place == arguments.begin()->tensor.place();
    where << (&argument == arguments.begin() ? "" : ", ") << argument.name << " is on " << text(place);
  }
  if (!together)
  refuse(op, where.str() + "; accepted: all on the CPU, or all on one virtual npu device. Move them with tensor.to.");
}

void check_float(const char* op, const Argument& argument) {
  const DataType dtype = argument.tensor.dtype();
  if (dtype == DataType::FLOAT32 || is_16_bit_float(dtype)) return;
  refuse(op, std::string(argument.name) + " is " + text(dtype) +
                 "; accepted: float32, bfloat16, float16. Cast it with tensor.astype.");
}

void check_same_dtype(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  for (const Argument& argument : arguments) {
    if (argument.tensor.dtype() == first.tensor.dtype()) continue;
    refuse(op, std::string(argument.name) + " is " + text(argument.tensor.dtype()) + " and " + first.name + " is " +
                   text(first.tensor.dtype()) + "; accepted: the same dtype for both. Cast one with tensor.astype.");
  }
}

void check_gradient(const char* op, const Argument& gradient, const Argument& like, const Shape& shape) {
  check_places(op, {like, gradient});
  check_same_dtype(op, {like, gradient});
  if (gradient.tensor.shape() != shape)
    refuse(op, std::string(gradient.name) + " has shape " + text(gradient.tensor.shape()) + "; accepted: " +
                   text(shape) + ", the shape of the corresponding output.");
}

void refuse_second_derivative(const char* op) {
  refuse(op, "received create_graph=True; accepted: first derivatives only. The composed backend supports higher "
             "derivatives: paddle_fused.use_backend('composed', strict=True).");
}

void check_size(const char* op, const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  int64_t bytes = sizeof(float);
  for (int64_t size : shape)
    if (__builtin_mul_overflow(bytes, size, &bytes))
      refuse(op, "the result would have shape " + text(shape) + "; accepted: fewer than 2^63 bytes.");
}

Tensor empty_if(bool wanted, const Tensor& tensor) {
  return paddle::empty(wanted ? tensor.shape() : Shape{0}, tensor.dtype(), tensor.place());
}

HostCall::HostCall(const char* op, std::initializer_list<Tensor> inputs) : counted_(is_npu(inputs.begin()->place())) {
  if (!counted_) return;
  std::vector<const phi::TensorBase*> tensors;
  for (const Tensor& tensor : inputs) tensors.push_back(tensor.impl().get());
  virtual_npu_plugin().begin_host_operator(op, static_cast<int>(inputs.begin()->dtype()), tensors.data(),
                                           static_cast<int>(tensors.size()));
}
HostCall::~HostCall() {
  if (counted_) virtual_npu_plugin().end_host_operator();
}

}  // namespace paddle_fused::ops
