#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace paddle_fused::kernels {

// forward[GeluForm][ElementType] for `count` consecutive elements. stream: the output bypasses the caches.
struct GeluTable {
  void (*forward[2][3])(const void* x, int64_t count, bool stream, void* y);
  void (*backward[2][3])(const void* x, const void* dy, int64_t count, bool stream, void* dx);
};
PF_DECLARE_TABLE(GeluTable, gelu_table)

}  // namespace paddle_fused::kernels
