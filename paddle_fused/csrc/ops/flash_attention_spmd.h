// How pf_flash_attention's tensors lie on a mesh of devices: batch and heads may be split, the rest is whole.
#pragma once
#include <string>

#include "ops/spmd.h"

namespace paddle_fused::ops::flash_attention {

SpmdInfo infer_spmd(const DistMetaTensor& query, const DistMetaTensor& key, const DistMetaTensor& value,
                    const DistMetaTensor& bias, const DistMetaTensor& mask, const DistMetaTensor& query_ends,
                    const DistMetaTensor& key_ends, const DistMetaTensor& prefix, const DistMetaTensor& seed,
                    const std::string& layout, int64_t num_heads, float scale, float dropout, int sparse_mode,
                    int64_t pre_tokens, int64_t next_tokens);

SpmdInfo infer_gradient_spmd(const DistMetaTensor& query, const DistMetaTensor& key, const DistMetaTensor& value,
                             const DistMetaTensor& bias, const DistMetaTensor& mask, const DistMetaTensor& query_ends,
                             const DistMetaTensor& key_ends, const DistMetaTensor& prefix, const DistMetaTensor& out,
                             const DistMetaTensor& softmax_max, const DistMetaTensor& softmax_sum,
                             const DistMetaTensor& seed_offset, const DistMetaTensor& out_grad,
                             const std::string& layout, int64_t num_heads, float scale, float dropout, int sparse_mode,
                             int64_t pre_tokens, int64_t next_tokens);

}  // namespace paddle_fused::ops::flash_attention
