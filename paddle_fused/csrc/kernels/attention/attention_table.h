// The interface between attention.cc and the code for one instruction set: one block of one head of one segment.
#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"

namespace paddle_fused::kernels {

struct AttentionSegment {
  int64_t batch;                   // index for batch strides; 0 with cumulative lengths
  int64_t query_start, query_len;  // in tokens, relative to the batch entry
  int64_t kv_start, kv_len;
  AttentionBand band;
  int64_t first_row;               // global number of the first query token over all segments
};

struct AttentionBlock {
  const AttentionProblem* problem;
  AttentionSegment segment;
  int64_t head;   // query head, or key-value head of a block of keys
  int64_t begin;  // first query, or first key
};

// A block of keys of the backward pass. Blocks are added to the gradient of a tile of queries in the order of their
// keys, for any number of threads. Tiles are numbered over the query heads that share the keys.
struct AttentionKeyBlock {
  AttentionBlock block;
  float* query_grads;  // of every tile; nullptr: this is the only block of keys
  int64_t* turns;      // for every tile, the first key of the next block to add to it
};

// A tile of the bias gradient: the sum over all segments, heads and queries in these ranges that attend to its keys.
struct AttentionBiasBlock {
  const AttentionProblem* problem;
  const AttentionSegment *first_segment, *end_segment;
  int64_t first_head, end_head;
  int64_t first_query, end_query;  // one tile, or all queries if the bias is broadcast over queries
  int64_t key;
};

struct AttentionForward {
  AttentionInput query, key, value;
  AttentionOutput out;
  SoftmaxStatistics statistics;
};

struct AttentionBackward {
  AttentionInput query, key, value, out, out_grad;
  SoftmaxStatistics statistics;
  AttentionOutput query_grad, key_grad, value_grad;
  AttentionBiasGrad bias_grad;
  float* delta;  // rowsum(dO * O), [query_heads, all query tokens]
  int64_t delta_head_stride;
};

// Arrays are indexed by ElementType. `workspace` has workspace_floats(problem) floats, aligned to 64 bytes.
struct AttentionForwardTable {
  int64_t queries;  // per block
  int64_t (*workspace_floats)(const AttentionProblem& problem);
  void (*run[3])(const AttentionBlock& block, const AttentionForward& tensors, float* workspace);
};
struct AttentionBackwardTable {
  int64_t keys, tile_queries;  // per block; per tile
  int64_t (*tile_floats)(const AttentionProblem& problem);  // size of query_grads per tile
  int64_t (*prepare_floats)(const AttentionProblem& problem);
  int64_t (*workspace_floats)(const AttentionProblem& problem);
  // For every tile of queries, before the first block of keys. The workspace has prepare_floats.
  void (*prepare[3])(const AttentionBlock& tile, const AttentionBackward& tensors, float* workspace);
  void (*run[3])(const AttentionKeyBlock& block, const AttentionBackward& tensors, float* workspace);
};
struct AttentionBiasGradTable {
  int64_t queries, keys;  // per tile
  int64_t (*workspace_floats)(const AttentionProblem& problem);
  void (*run[3])(const AttentionBiasBlock& block, const AttentionBackward& tensors, float* workspace);
};
PF_DECLARE_PRODUCT_TABLE(AttentionForwardTable, attention_forward_table)
PF_DECLARE_PRODUCT_TABLE(AttentionBackwardTable, attention_backward_table)
PF_DECLARE_PRODUCT_TABLE(AttentionBiasGradTable, attention_bias_grad_table)

}  // namespace paddle_fused::kernels
