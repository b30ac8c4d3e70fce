#include "runtime/communication_time.h"

namespace virtual_npu {

CommunicationTime& communication_time() {
  static auto* time = new CommunicationTime;  // stream threads may outlive static objects
  return *time;
}

}  // namespace virtual_npu

extern "C" void virtual_npu_communication_time(double* busy, double* exposed) {
  const auto& time = virtual_npu::communication_time();
  *busy = double(time.busy.load()) * 1e-9;
  *exposed = double(time.exposed.load()) * 1e-9;
}
