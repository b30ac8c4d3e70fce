// The instruction set's product of tiles, for bfloat16/*.cc and code compiled for bfloat16 products only:
//   multiply_tiles<kColumnTiles, kPacked>(rows, a, b, steps, sums, accumulate)      C (+)= A B
// C is 32 rows by kColumnTiles tiles of row-major fp32 sums. Only the first `rows` rows need to be computed. Every
// step of 32 in depth has two tiles of A (upper and lower) and kColumnTiles adjacent tiles of B. Sums continue from
// memory, so the order of additions does not depend on how the depth is split.
#pragma once
#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // clang before 16 defines the second
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
