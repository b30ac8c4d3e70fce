// Embedding: out[i] = weight[ids[i]], or zeros where ids[i] == padding_idx;
//   dweight[v] = sum over the i with ids[i] == v != padding_idx of dout[i], in the order of i.
// weight, dweight: [vocabulary, width]; out, dout: [count, width]; all have `type`. Sums are accumulated in float32
// and rounded once; results are bit-identical for any number of threads. Ids other than padding_idx are in [0,
// vocabulary).
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

constexpr int64_t kNoPadding = -1;

struct EmbeddingShape {
  int64_t vocabulary, width, count;
};

PF_EXPORT void embedding_forward(ElementType type, const EmbeddingShape& shape, const int64_t* ids,
                                 int64_t padding_idx, const void* weight, void* out);
PF_EXPORT void embedding_backward(ElementType type, const EmbeddingShape& shape, const int64_t* ids,
                                  int64_t padding_idx, const void* dout, void* dweight);

}  // namespace paddle_fused::kernels
