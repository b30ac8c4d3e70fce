// Scaled dot-product attention in tiles, without memory proportional to Sq * Skv.
//
//   S = scale * Q K^T + bias_scale * bias     P = softmax of S over the unmasked keys     O = (P * R) V
//
// R is the dropout factor: 0, or 1/keep with probability keep. Layouts are given by strides (in elements); the head
// dimension is contiguous. A "segment" is one sequence: one batch entry (BSND), or the tokens between two cumulative
// lengths (TND). The arithmetic is fp32 for all element types. With AVX512_BF16 and AMX, P * R and dS of bfloat16
// tensors are rounded to bfloat16 and multiplied in bfloat16. Results do not depend on the number of threads: one
// thread sums each output block, in a fixed order.
//
// Masked keys:
// - Keys outside the band are excluded, and tiles that contain only such keys are skipped.
// - A key masked by the mask has the score kHiddenScore, which is finite as on the NPU. If all keys of a row inside
// the   band are masked, the row becomes their uniform average and has no gradient for Q, K and the bias.
// - A row without keys inside the band is zero and has no gradient.
// - A bias of -inf excludes its key like the band. A finite bias or a product of Q and K that lowers a score below
//   kHiddenScore masks the key like the mask.
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

// True (non-zero) means masked. data == nullptr: no mask. The key dimension is contiguous; a stride of 0 broadcasts.
struct AttentionMask {
  const uint8_t* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
};

// Added to the scores; has the tensors' element type. data == nullptr: no bias. The key dimension is contiguous; a
// stride of 0 broadcasts. Not supported with cumulative lengths.
struct AttentionBias {
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
  float scale = 1;
};
// The bias gradient, contiguous in the key dimension. It is summed over dimensions with stride 0.
struct AttentionBiasGrad {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
};

// Query i attends to the keys i - pre <= j <= i + next of its segment and to the keys j < prefix.
struct AttentionBand {
  int64_t pre = INT64_MAX, next = INT64_MAX, prefix = 0;
};

// Row maximum of S and row sum of exp(S - max), fp32. Each value is repeated `copies` times.
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
  int64_t query_len, kv_len;                // of each segment, or of the longest one with cumulative lengths
  const int64_t* query_ends = nullptr;      // cumulative lengths [segments]; batch strides must then be 0
  const int64_t* kv_ends = nullptr;
  float scale = 1;
  AttentionBias bias;
  AttentionMask mask;
  const AttentionBand* bands = nullptr;  // [segments]; nullptr: no band
  // Dropout: the factor of an element depends only on seed, offset and position (Philox4x32-10).
  double keep_probability = 1;
  uint64_t seed = 0, offset = 0;
};

PF_EXPORT void attention_forward(const AttentionProblem& problem, const AttentionInput& query,
                                 const AttentionInput& key, const AttentionInput& value, const AttentionOutput& out,
                                 const SoftmaxStatistics& statistics);

// With dP = (dO V^T) * R and dS = P * (dP - rowsum(dO * O)):
//   dV = (P * R)^T dO     dQ = scale * dS K     dK = scale * dS^T Q     dbias = bias_scale * dS
// bias_grad.data == nullptr: not computed. Its strides are 0 where the strides of the bias are.
PF_EXPORT void attention_backward(const AttentionProblem& problem, const AttentionInput& query,
                                  const AttentionInput& key, const AttentionInput& value, const AttentionInput& out,
                                  const AttentionInput& out_grad, const SoftmaxStatistics& statistics,
                                  const AttentionOutput& query_grad, const AttentionOutput& key_grad,
                                  const AttentionOutput& value_grad, const AttentionBiasGrad& bias_grad = {});

}  // namespace paddle_fused::kernels
