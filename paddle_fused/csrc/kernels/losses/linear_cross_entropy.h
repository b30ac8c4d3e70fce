// Cross entropy of the logits hidden x weight, which are never materialized. T tokens, H hidden size, V vocabulary
// entries in G blocks of V / G.
//
//   logits = hidden weight           hidden [T, H], weight [H, V] (or [V, H], used transposed)
//   lse[t, g] = log(sum over v in block g of exp(logits[t, v]))
//   target[t, g] = logits[t, label[t]] if block g contains the label, else 0
//
//   dlogits[t, v] = exp(logits[t, v] - lse[t, g(v)]) dlse[t, g(v)] + (v is the label) dtarget[t, g(v)]
//   dhidden = dlogits weight^T,  dweight = hidden^T dlogits
//
// The logits are computed for a few columns at a time, in the forward pass and again in the backward pass. Keeping
// their gradient would require the gradient of each token's loss before the loss is returned. If the caller sums or
// averages the tokens, this gradient is known, and linear_cross_entropy_gradients needs three matmuls instead of
// four. Tokens with
// ignore_index are skipped: lse = target = 0 and the gradient of their hidden is 0. Tensors have `type`; logits,
// statistics and sums are float32. dweight is summed over all tokens and dhidden over the whole vocabulary before
// they are rounded once. With bfloat16 products, dlogits of bfloat16 tensors is rounded to bfloat16 before it is
// multiplied.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct LinearCrossEntropyProblem {
  ElementType type;  // of hidden, weight and their gradients
  int64_t tokens, width, vocabulary, blocks;
  bool transpose_weight;
  const int64_t* labels;     // [T]; labels outside all blocks have their target in another process
  const int64_t* first_ids;  // [G], the vocabulary id of each block's first entry
  int64_t ignore_index;
};

// lse, target: [T, G].
PF_EXPORT void linear_cross_entropy_forward(const LinearCrossEntropyProblem& problem, const void* hidden,
                                            const void* weight, float* lse, float* target);

// dhidden or dweight may be null if it is not needed.
PF_EXPORT void linear_cross_entropy_backward(const LinearCrossEntropyProblem& problem, const void* hidden,
                                             const void* weight, const float* lse, const float* dlse,
                                             const float* dtarget, void* dhidden, void* dweight);

// loss[t] = lse[t] - target[t], and the gradients of scale * (sum of loss), for a vocabulary in one block and
// float32. Computes the logits of a few tokens at a time over the whole vocabulary and sums dweight in place. dhidden
// or dweight may be null.
PF_EXPORT void linear_cross_entropy_gradients(const LinearCrossEntropyProblem& problem, const float* hidden,
                                              const float* weight, float scale, float* loss, float* dhidden,
                                              float* dweight);

}  // namespace paddle_fused::kernels
