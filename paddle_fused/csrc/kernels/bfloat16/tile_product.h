// The product of tiles that the instruction set has, for bfloat16/*.cc and what is compiled for such products only:
//   multiply_tiles<kColumnTiles, kPacked>(rows, a, b, steps, sums, accumulate)      C (+)= A B
// C is 32 rows by kColumnTiles tiles of sums in fp32, row by row. The first `rows` rows are wanted; the others need not
// be computed. Every step of 32 in depth takes two tiles of A, the upper and the lower, and kColumnTiles tiles of B, side
// by side. Sums go on where those in memory ended: the order of additions does not depend on how often they stop.
#pragma once
#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // the second: clang before 16
#include "kernels/bfloat16/amx_product.h"
#else
#include "kernels/bfloat16/dot_product.h"
#endif

namespace paddle_fused::kernels {
namespace PF_TARGET {

constexpr int64_t kProductRows = 2 * kTileRows;
constexpr int64_t kStepElements = 2 * kTileElements;  // of two tiles

static inline int64_t steps_of(int64_t depth) { return (depth + kTileDepth - 1) / kTileDepth; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
