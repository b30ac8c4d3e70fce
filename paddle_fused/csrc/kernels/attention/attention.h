// Scaled dot-product attention in tiles: no memory grows with Sq * Skv.
//
//   S = scale * Q K^T + bias_scale * bias     P = softmax over the visible keys of S     O = (P * R) V
//
// R is the dropout factor: 0, or 1/keep with probability keep. Layouts are given by strides (in elements), the head
// dimension being contiguous. A "segment" is one sequence: one entry of the batch (BSND), or the tokens between two
// cumulative lengths (TND). Arithmetic is fp32 whatever the tensors hold (but AVX512_BF16 and AMX multiply bfloat16:
// there P * R and dS of bfloat16 tensors are rounded to it), and results do not depend on the number of threads: every
// block of an output is summed by one thread, in one order.
//
// Hidden keys. Keys outside of the band do not take part, and tiles without any other are not computed. A key hidden by
// the mask has the score kHiddenScore, which is finite as on the NPU: a row whose keys inside the band are all hidden
// becomes their uniform average and sends no gradient to Q, K and the bias. A row with no key inside the band gives
// zeros and sends no gradient. A bias of -inf takes its key out as the band does; a finite one that brings a score
// below kHiddenScore hides its key as the mask does, and so does a product of Q and K that is below it.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/isa.h"

namespace paddle_fused::kernels {

constexpr float kHiddenScore = -1.7e38f;

struct AttentionInput {
  const void* data;
  int64_t batch_stride, token_stride, head_stride;
};
struct AttentionOutput {
  void* data;
  int64_t batch_stride, token_stride, head_stride;
};

// True (non-zero) masks a key. data == nullptr: no mask. The key dimension is contiguous; a stride of 0 broadcasts.
struct AttentionMask {
  const uint8_t* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
};

// Added to the scores, of the tensors' element type. data == nullptr: no bias. The key dimension is contiguous; a
// stride of 0 broadcasts. Not together with cumulative lengths.
struct AttentionBias {
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
  float scale = 1;
};
// The gradient, dense in the key dimension; what a stride of 0 broadcasts is summed.
struct AttentionBiasGrad {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
};

// Query i sees the keys i - pre <= j <= i + next of its segment, and the keys j < prefix.
struct AttentionBand {
  int64_t pre = INT64_MAX, next = INT64_MAX, prefix = 0;
};

// Row maximum of S and row sum of exp(S - max), fp32, each value written `copies` times in a row.
struct SoftmaxStatistics {
  float* max;
  float* sum;
  int64_t batch_stride, token_stride, head_stride;
  int64_t copies;
};

struct AttentionProblem {
  ElementType type;
  int64_t segments, query_heads, kv_heads;  // query_heads is a multiple of kv_heads
  int64_t head_dim, value_head_dim;         // of Q and K; of V and O
  int64_t query_len, kv_len;                // of each segment; of the longest one if ends are given
  const int64_t* query_ends = nullptr;      // cumulative lengths [segments]; then batch strides must be 0
  const int64_t* kv_ends = nullptr;
  float scale = 1;
  AttentionBias bias;
  AttentionMask mask;
  const AttentionBand* bands = nullptr;  // [segments]; nullptr: no key is outside
  // Dropout: the factor of an element depends on seed, offset and its position only (Philox4x32-10).
  double keep_probability = 1;
  uint64_t seed = 0, offset = 0;
};

PF_EXPORT void attention_forward(const AttentionProblem& problem, const AttentionInput& query,
                                 const AttentionInput& key, const AttentionInput& value, const AttentionOutput& out,
                                 const SoftmaxStatistics& statistics);

// With dP = (dO V^T) * R and dS = P * (dP - rowsum(dO * O)):
//   dV = (P * R)^T dO     dQ = scale * dS K     dK = scale * dS^T Q     dbias = bias_scale * dS
// bias_grad.data == nullptr: not wanted; its strides are 0 where those of the bias are.
PF_EXPORT void attention_backward(const AttentionProblem& problem, const AttentionInput& query,
                                  const AttentionInput& key, const AttentionInput& value, const AttentionInput& out,
                                  const AttentionInput& out_grad, const SoftmaxStatistics& statistics,
                                  const AttentionOutput& query_grad, const AttentionOutput& key_grad,
                                  const AttentionOutput& value_grad, const AttentionBiasGrad& bias_grad = {});

}  // namespace paddle_fused::kernels
