#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// Indexed by ElementType; each entry works on `count` consecutive elements. stream: the outputs pass by the caches.
// backward: dgate and dup may be null.
struct SwigluTable {
  void (*forward[3])(const void* gate, const void* up, int64_t count, bool stream, void* y);
  void (*backward[3])(const void* gate, const void* up, const void* dy, int64_t count, bool stream, void* dgate,
                      void* dup);
};
PF_DECLARE_TABLE(SwigluTable, swiglu_table)

}  // namespace paddle_fused::kernels
