#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType; each entry works on `count` consecutive elements.
struct SwigluTable {
  void (*forward[3])(const void* gate, const void* up, int64_t count, void* y);
  void (*gate_gradient[3])(const void* gate, const void* up, const void* dy, int64_t count, void* dgate);
  void (*up_gradient[3])(const void* gate, const void* dy, int64_t count, void* dup);
};
PF_DECLARE_TABLE(SwigluTable, swiglu_table)

}  // namespace paddle_fused::kernels
