#include "ops/attention/attention_sparse_modes.h"

#include <algorithm>

namespace paddle_fused::ops {
namespace {

using kernels::AttentionBand;

constexpr int64_t kUnbounded = INT64_MAX;

AttentionBand causal_from_top_left() { return {kUnbounded, 0}; }
AttentionBand causal_to_bottom_right(const SegmentLengths& s) { return {kUnbounded, s.kv - s.query}; }

AttentionBand band_to_bottom_right(const SparseMode& sparse, const SegmentLengths& s) {
  // Beyond any sequence, and small enough that the sum with d does not overflow.
  constexpr int64_t kFar = int64_t{1} << 40;
  const int64_t d = s.kv - s.query;
  return {std::clamp(sparse.pre_tokens, -kFar, kFar) - d, std::clamp(sparse.next_tokens, -kFar, kFar) + d};
}

}  // namespace

std::vector<AttentionBand> bands_of(const SparseMode& sparse, const std::vector<SegmentLengths>& segments) {
  std::vector<AttentionBand> bands(segments.size());
  const auto has_queries = [](const SegmentLengths& s) { return s.query > 0; };
  const auto first = std::find_if(segments.begin(), segments.end(), has_queries) - segments.begin();
  const auto last = segments.rend() - std::find_if(segments.rbegin(), segments.rend(), has_queries) - 1;
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(segments.size()); ++i) {
    const SegmentLengths& s = segments[i];
    switch (sparse.mode) {
      case 0:
        bands[i] = {sparse.pre_tokens, sparse.next_tokens};
        break;
      case 1:
        break;
      case 2:
        bands[i] = causal_from_top_left();
        break;
      case 3:
        bands[i] = causal_to_bottom_right(s);
        break;
      case 4:
        bands[i] = band_to_bottom_right(sparse, s);
        break;
      case 5:
      case 6:
        bands[i] = causal_to_bottom_right(s);
        bands[i].prefix = sparse.prefix[i];
        break;
      case 7:
        bands[i] = i == last ? band_to_bottom_right(sparse, s) : causal_to_bottom_right(s);
        break;
      case 8:
        bands[i] = i == first ? band_to_bottom_right(sparse, s) : causal_from_top_left();
        break;
    }
  }
  return bands;
}

}  // namespace paddle_fused::ops
