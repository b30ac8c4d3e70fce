// Calls of host kernels that leave their outputs as they are, for programs that are followed without being computed.
#pragma once
#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Whether the calling thread's calls are idle: while an Idle of its own exists.
PF_EXPORT bool is_idle();

class PF_EXPORT Idle {
 public:
  Idle();
  ~Idle();
  Idle(const Idle&) = delete;
};

}  // namespace paddle_fused::kernels
