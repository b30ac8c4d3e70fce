#pragma once
#include "kernels/elementwise/gated.h"

namespace paddle_fused::kernels {

// The kernels of one activation, indexed by ElementType. Each processes `count` consecutive elements. stream: the
// outputs bypass the caches. backward: dgate and dup may be null.
struct GatedKernels {
  void (*forward[3])(const void* gate, const void* up, int64_t count, bool stream, void* y);
  void (*backward[3])(const void* gate, const void* up, const void* dy, int64_t count, bool stream, void* dgate,
                      void* dup);
};
// Indexed by Activation.
using GatedTable = const GatedKernels*;
PF_DECLARE_TABLE(GatedTable, gated_table)

}  // namespace paddle_fused::kernels
