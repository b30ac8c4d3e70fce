#include "kernels/no_compute_guard.h"

namespace paddle_fused::kernels {
namespace {

thread_local int idles = 0;

}  // namespace

bool is_idle() { return idles > 0; }
Idle::Idle() { ++idles; }
Idle::~Idle() { --idles; }

}  // namespace paddle_fused::kernels
