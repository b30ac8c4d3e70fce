// The device context of a static program's ring, which the ring needs in addition to its communicator.
#include <memory>
#include <string>
#include <utility>

#include "framework/paddle_release.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/distributed/comm_context_manager.h"
#include "paddle/phi/core/distributed/xccl_comm_context.h"

// Paddle's executor runs a ring's collectives in the context of its communicator, and reads a null pointer if there
// is none. (CommContextManager creates it for a communicator whose device id was set in the same library, but Python
// calls a setter in another library.) The context shares the compute stream, so a collective is ordered between the
// preceding and the
// following kernels: the executor sets no events between streams of a custom device.
// Returns whether the ring exists.
extern "C" int virtual_npu_prepare_ring(const char* ring, int device) {
  const auto& manager = phi::distributed::CommContextManager::GetInstance();
  if (!manager.Has(ring)) return 0;
  auto* communicator = static_cast<phi::distributed::XCCLCommContext*>(manager.Get(ring));
  if (!virtual_npu::paddle_release::lacks_context(*communicator)) return 1;
  const phi::CustomPlace place("npu", device);
  auto* compute = static_cast<phi::CustomContext*>(phi::DeviceContextPool::Instance().Get(place));
  auto context = std::make_unique<phi::CustomContext>(place);
  context->SetStream(compute->GetStream());
  context->SetAllocator(&compute->GetAllocator());
  context->SetHostAllocator(&compute->GetHostAllocator());
  context->SetZeroAllocator(&compute->GetZeroAllocator());
  context->SetHostZeroAllocator(&compute->GetHostZeroAllocator());
  context->SetGenerator(compute->GetGenerator());
  context->SetHostGenerator(compute->GetHostGenerator());
  context->SetCommContext(communicator);
  virtual_npu::paddle_release::set_context(communicator, std::move(context));
  return 1;
}
