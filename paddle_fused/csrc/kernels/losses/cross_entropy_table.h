#pragma once
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/losses/cross_entropy.h"

namespace paddle_fused::kernels {

// Rounded up to whole registers of any target.
constexpr int64_t cross_entropy_row(int64_t classes) { return (classes + 31) / 32 * 32; }

// Indexed by ElementType. Row r has outer index r / inner and inner index r % inner. `row` is scratch space for
// cross_entropy_row(classes) floats. stream: softmax bypasses the caches.
struct CrossEntropyTable {
  void (*forward[3])(const CrossEntropyProblem& problem, const void* x, int64_t r, float* row, bool stream,
                     void* softmax, void* loss);
  void (*backward[3])(const CrossEntropyProblem& problem, const void* softmax, const void* dloss, int64_t r, void* dx);
};
PF_DECLARE_TABLE(CrossEntropyTable, cross_entropy_table)

}  // namespace paddle_fused::kernels
