// Host kernels that leave their outputs as they are: dry runs follow a program without computing it.
#pragma once
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Whether the calling thread's kernels do not compute: while it has a NoComputeGuard.
PF_EXPORT bool compute_is_disabled();

class PF_EXPORT NoComputeGuard {
 public:
  NoComputeGuard();
  ~NoComputeGuard();
  NoComputeGuard(const NoComputeGuard&) = delete;
};

}  // namespace paddle_fused::kernels
