#include "kernels/no_compute_guard.h"

namespace paddle_fused::kernels {
namespace {

thread_local int guards = 0;

}  // namespace

bool compute_is_disabled() { return guards > 0; }
NoComputeGuard::NoComputeGuard() { ++guards; }
NoComputeGuard::~NoComputeGuard() { --guards; }

}  // namespace paddle_fused::kernels
