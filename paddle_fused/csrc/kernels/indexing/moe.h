// Mixture of experts: copies token rows into the order of their experts, and sums them back.
//   place[i] = position of entry i in the stable order of experts[0 .. entries)        (entry i belongs to token i / top_k)
//   permute:   permuted[place[i]] = tokens[i / top_k]
//   unpermute: out[t] = sum over k of probs[t, k] * permuted[place[t * top_k + k]]
// Entries with place >= `kept` were dropped: permute skips them, unpermute treats them as zeros.
// tokens, out: [tokens, width]; permuted: [kept, width]; all have `type`. probs: float32 [tokens, top_k], null for
// ones. Sums are accumulated in float32 in the order of k and rounded once. Results do not depend on the number of
// threads.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct MoeShape {
  int64_t tokens, top_k, kept, width;

  int64_t entries() const { return tokens * top_k; }
};

// Exclusive upper bound of expert numbers, because a card sorts them as floats.
constexpr int64_t kMoeExpertLimit = 16777215;

// Fills `place`. Returns `entries`, or the first entry whose expert is outside [0, kMoeExpertLimit); `place` is then
// undefined.
PF_EXPORT int64_t moe_places(const int32_t* experts, int64_t entries, int32_t* place);
PF_EXPORT int64_t moe_places(const int64_t* experts, int64_t entries, int32_t* place);

// Fills entry_at such that place[entry_at[j]] == j. Returns `entries`, or the first entry whose place is outside
// [0, entries) or occurs twice. The functions below require valid places.
PF_EXPORT int64_t moe_entries(const int32_t* place, int64_t entries, int32_t* entry_at);

PF_EXPORT void moe_permute(ElementType type, const MoeShape& shape, const void* tokens, const int32_t* place,
                           void* permuted);
PF_EXPORT void moe_unpermute(ElementType type, const MoeShape& shape, const void* permuted, const int32_t* place,
                             const float* probs, void* out);

// dpermuted[place[i]] = probs[i] * dout[i / top_k],  dprobs[i] = dout[i / top_k] . permuted[place[i]], zero if
// dropped. Without probs, dprobs is not computed and permuted is not read; both may be null.
PF_EXPORT void moe_unpermute_backward(ElementType type, const MoeShape& shape, const void* dout, const void* permuted,
                                      const int32_t* entry_at, const float* probs, void* dpermuted, float* dprobs);

}  // namespace paddle_fused::kernels
