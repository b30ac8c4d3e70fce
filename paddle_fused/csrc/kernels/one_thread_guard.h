// Runs the OpenMP loops of the calling thread on one thread.
#pragma once
#include "kernels/isa.h"

namespace paddle_fused::kernels {

class PF_EXPORT OneThreadGuard {
 public:
  OneThreadGuard();
  ~OneThreadGuard();
  OneThreadGuard(const OneThreadGuard&) = delete;

 private:
  int threads_;  // the setting before
};

}  // namespace paddle_fused::kernels
