// Cross entropy of the logits hidden x weight, which never exist as a whole: T tokens, H hidden, V vocabulary entries in
// G blocks of V / G.
//
//   logits = hidden weight           hidden [T, H], weight [H, V] (or [V, H], used transposed)
//   lse[t, g] = log(sum over v in block g of exp(logits[t, v]))
//   target[t, g] = logits[t, label[t]] if block g holds the label, else 0
//
//   dlogits[t, v] = exp(logits[t, v] - lse[t, g(v)]) dlse[t, g(v)] + (v is the label) dtarget[t, g(v)]
//   dhidden = dlogits weight^T,  dweight = hidden^T dlogits
//
// The logits are computed for a few columns at a time, in the forward and once more in the backward: keeping their
// gradient instead would need the gradient of each token's loss before the loss is returned. It is known beforehand
// when the caller sums or averages the tokens: linear_cross_entropy_gradients then needs three products instead of
// four. Tokens with ignore_index take no part: lse = target = 0 and their hidden gets the gradient 0. Tensors have
// `type`; logits, statistics and sums are float32, dweight is summed over all tokens and dhidden over the whole
// vocabulary before they are rounded once. Where the processor multiplies bfloat16 by bfloat16, dlogits of bfloat16
// tensors is rounded to it as a factor.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct LinearCrossEntropyProblem {
  ElementType type;  // of hidden and weight and of their gradients
  int64_t tokens, width, vocabulary, blocks;
  bool transpose_weight;
  const int64_t* labels;     // [T]; those that no block holds have their target elsewhere
  const int64_t* first_ids;  // [G]: the vocabulary id of each block's first entry
  int64_t ignore_index;
};

// lse, target: [T, G].
PF_EXPORT void linear_cross_entropy_forward(const LinearCrossEntropyProblem& problem, const void* hidden,
                                            const void* weight, float* lse, float* target);

// Either of dhidden and dweight may be null: it is not computed then.
PF_EXPORT void linear_cross_entropy_backward(const LinearCrossEntropyProblem& problem, const void* hidden,
                                             const void* weight, const float* lse, const float* dlse,
                                             const float* dtarget, void* dhidden, void* dweight);

// loss[t] = lse[t] - target[t], and the gradients of scale * (sum of loss), for a vocabulary in one block and float32.
// The logits of a few tokens exist at a time, over the whole vocabulary; dweight is summed in place. Either of dhidden
// and dweight may be null.
PF_EXPORT void linear_cross_entropy_gradients(const LinearCrossEntropyProblem& problem, const float* hidden,
                                              const float* weight, float scale, float* loss, float* dhidden,
                                              float* dweight);

}  // namespace paddle_fused::kernels
