#include "bridge/views.h"

#include <map>
#include <mutex>
#include <typeinfo>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/core/generator.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

// Allocates from the device's allocator and returns CPU allocations.
class ViewAllocator final : public phi::Allocator {
 public:
  explicit ViewAllocator(phi::Allocator& device) : device_(device) {}
  AllocationPtr Allocate(size_t size) override {
    auto* view = new CpuView(Holder(device_.Allocate(size)));
    return AllocationPtr(view, [](phi::Allocation* allocation) { delete allocation; });
  }
  bool IsAllocThreadSafe() const override { return true; }

 private:
  phi::Allocator& device_;
};

class BridgeContext final : public phi::CPUContext {
 public:
  explicit BridgeContext(const phi::DeviceContext& npu)
      : CPUContext(phi::CPUPlace()),
        allocator_(const_cast<phi::Allocator&>(npu.GetAllocator())),
        zero_allocator_(const_cast<phi::Allocator&>(npu.GetZeroAllocator())) {
    auto* cpu = phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
    SetAllocator(&allocator_);
    SetZeroAllocator(&zero_allocator_);
    SetPinnedAllocator(&allocator_);
    // Some kernels allocate their outputs as host memory, such as assign; the checks observe device memory.
    if (config().checks)
      SetHostAllocator(&allocator_);
    else
      SetHostAllocator(&cpu->GetHostAllocator());
    SetHostZeroAllocator(&cpu->GetHostZeroAllocator());
    // A communication context has no generator, and requesting one throws. Some CPU kernels use the context's
    // generator and some its host generator; both share one sequence of numbers, as on the CPU place.
    phi::Generator* generator = phi::DefaultCustomDeviceGenerator(phi::CustomPlace(npu.GetPlace())).get();
    SetGenerator(generator);
    SetHostGenerator(generator);
  }

 private:
  ViewAllocator allocator_, zero_allocator_;
};

}  // namespace

bool on_npu(const Holder& holder) { return holder->place().GetType() == phi::AllocationType::CUSTOM; }

Holder as_npu(const Holder& holder, const phi::Place& place) {
  if (typeid(*holder) == typeid(CpuView)) return static_cast<CpuView&>(*holder).origin;
  if (holder->place().GetType() != phi::AllocationType::CPU) return holder;
  return std::make_shared<NpuView>(holder, place);
}

phi::CPUContext* cpu_context_of(const phi::DeviceContext& context) {
  // Contexts live as long as the process. Each thread caches the last one it used.
  thread_local const phi::DeviceContext* last = nullptr;
  thread_local phi::CPUContext* last_bridge = nullptr;
  if (last != &context) {
    static std::mutex mutex;
    static auto* bridges = new std::map<const phi::DeviceContext*, BridgeContext*>;
    std::lock_guard<std::mutex> lock(mutex);
    BridgeContext*& bridge = (*bridges)[&context];
    if (!bridge) bridge = new BridgeContext(context);
    last = &context;
    last_bridge = bridge;
  }
  return last_bridge;
}

}  // namespace virtual_npu
