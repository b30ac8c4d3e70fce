// The device context of a ring of a static program, which it needs in addition to its communicator.
#include <memory>
#include <string>
#include <utility>

#include "framework/paddle_release.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/distributed/comm_context_manager.h"
#include "paddle/phi/core/distributed/xccl_comm_context.h"

// Paddle's executor runs the collectives of a ring in the context that belongs to its communicator, and reads a null
// pointer where none was made. (CommContextManager makes it for a communicator that a device id was set for in the
// same library; the setter that Python calls lies in another.) It shares the compute stream, so that a collective stands
// between the kernels before and behind it: the executor sets no events between streams of a custom device.
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
