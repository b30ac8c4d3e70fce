// Views of the same bytes under two places. Device memory of the virtual NPU is host memory, so a CPU kernel can use it
// without copies if the tensor's allocation has the place "CPU".
#pragma once
#include <memory>

#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/core/allocator.h"

namespace virtual_npu {

using Holder = std::shared_ptr<phi::Allocation>;

// An npu allocation as CPU kernels see it.
struct CpuView final : phi::Allocation {
  explicit CpuView(Holder npu) : Allocation(npu->ptr(), npu->size(), phi::CPUPlace()), origin(std::move(npu)) {}
  Holder origin;
};

// An allocation that a CPU kernel made on the host, as an npu tensor holds it.
struct NpuView final : phi::Allocation {
  NpuView(Holder cpu, const phi::Place& place) : Allocation(cpu->ptr(), cpu->size(), place), origin(std::move(cpu)) {}
  Holder origin;
};

bool on_npu(const Holder& holder);

// The npu allocation behind a CPU view; other host memory is wrapped; npu memory is returned unchanged.
Holder as_npu(const Holder& holder, const phi::Place& place);

// The context for CPU kernels instead of `context`: it allocates from the device and uses its generator.
phi::CPUContext* cpu_context_of(const phi::DeviceContext& context);

}  // namespace virtual_npu
