// Softmax and cross entropy along one axis of a tensor [outer, classes, inner]:
//   p = softmax(x),  loss = -log p[label]  (hard labels)  or  -sum over classes of label * log p  (soft labels)
//   dx = (p - onehot(label)) * dloss        or  (p - label) * dloss
// With use_softmax = false, x has the probabilities and is returned as p:
//   dx[label] = -dloss / p[label], 0 elsewhere  or  -label / p * dloss
// A hard label equal to ignore_index gives loss 0 and gradient 0; all others are in [0, classes). log p is at least
// -1e20, as in Paddle. Tensors have `type`; the arithmetic is float32 with one rounding.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

struct CrossEntropyProblem {
  ElementType type;
  int64_t outer, classes, inner;
  bool use_softmax;
  const int64_t* hard_labels;  // [outer, inner], or null
  const void* soft_labels;     // [outer, classes, inner], or null
  int64_t ignore_index;        // for hard labels
};

// softmax: [outer, classes, inner]; loss: [outer, inner].
PF_EXPORT void cross_entropy_forward(const CrossEntropyProblem& problem, const void* x, void* softmax, void* loss);

// dx may alias softmax.
PF_EXPORT void cross_entropy_backward(const CrossEntropyProblem& problem, const void* softmax, const void* dloss,
                                      void* dx);

}  // namespace paddle_fused::kernels
