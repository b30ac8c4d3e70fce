// Disables the computation of host kernels, leaving outputs unchanged, for dry runs.
#pragma once
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Whether the calling thread has a NoComputeGuard, so its kernels do not compute.
PF_EXPORT bool compute_is_disabled();

class PF_EXPORT NoComputeGuard {
 public:
  NoComputeGuard();
  ~NoComputeGuard();
  NoComputeGuard(const NoComputeGuard&) = delete;
};

}  // namespace paddle_fused::kernels
