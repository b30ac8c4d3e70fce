// CANN's sparse modes of FlashAttention as bands of keys, one for each sequence ("segment").
//
// With d = Skv - Sq of a segment, query i sees the keys j
//   0  i - pre_tokens <= j <= i + next_tokens, and the mask, if there is one, hides some of them
//   1  that the mask does not hide
//   2  j <= i
//   3  j <= i + d
//   4  i + d - pre_tokens <= j <= i + d + next_tokens
//   5  those of mode 3, and j < prefix
//   6  as 5 (on a card the modes differ in the shape of the mask)
//   7  those of mode 4 in the last segment that has queries, those of mode 3 in the others
//   8  those of mode 4 in the first segment that has queries, those of mode 2 in the others
//
// Source: CANN's document "sparse_mode_introduction" (ops-transformer, docs/zh/context).
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"

namespace paddle_fused::ops {

struct SparseMode {
  int mode;
  int64_t pre_tokens, next_tokens;
  std::vector<int64_t> prefix;  // one for each segment, for modes 5 and 6
};
struct SegmentLengths {
  int64_t query, kv;
};

// Modes other than these imply the mask's content.
inline bool reads_mask(int mode) { return mode == 0 || mode == 1; }
inline bool reads_prefix(int mode) { return mode == 5 || mode == 6; }

std::vector<kernels::AttentionBand> bands_of(const SparseMode& sparse, const std::vector<SegmentLengths>& segments);

}  // namespace paddle_fused::ops
