// Views of the same bytes on two places. Device memory of the virtual NPU is host memory, so CPU kernels can use it
// without copies if the tensor's allocation has the CPU place.
#pragma once
#include <memory>

#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/core/allocator.h"

namespace virtual_npu {

using Holder = std::shared_ptr<phi::Allocation>;

// An npu allocation with the CPU place, for CPU kernels.
struct CpuView final : phi::Allocation {
  explicit CpuView(Holder npu) : Allocation(npu->ptr(), npu->size(), phi::CPUPlace()), origin(std::move(npu)) {}
  Holder origin;
};

// A host allocation from a CPU kernel, owned by an npu tensor.
struct NpuView final : phi::Allocation {
  NpuView(Holder cpu, const phi::Place& place) : Allocation(cpu->ptr(), cpu->size(), place), origin(std::move(cpu)) {}
  Holder origin;
};

bool on_npu(const Holder& holder);

// The npu allocation behind a CPU view. Other host memory is wrapped; npu memory is returned unchanged.
Holder as_npu(const Holder& holder, const phi::Place& place);

// The CPU context that replaces `context`. It allocates from the device and uses the device's generator.
phi::CPUContext* cpu_context_of(const phi::DeviceContext& context);

}  // namespace virtual_npu
