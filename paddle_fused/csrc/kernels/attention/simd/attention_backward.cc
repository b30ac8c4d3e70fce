#include <sched.h>

#include "kernels/attention/attention_table.h"
#include "kernels/attention/simd/attention_gradients.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

int64_t query_tile_floats(const AttentionProblem& p) { return kQueryTile * head_width(p.head_dim); }

int64_t prepare_floats(const AttentionProblem& p) {
  return kQueryTile * (2 * transposed_width(p.value_head_dim) + 1) + 3 * 16;
}

int64_t workspace_floats(const AttentionProblem& p) {
  return GradientTile<float>::floats(p) + kKeyPanel * (2 * panels_of(p.head_dim) + panels_of(p.value_head_dim)) +
         query_tile_floats(p) + kKeyBlock + 5 * 16;
}

// delta of one tile of queries, and a zero gradient for queries without keys.
template <typename T>
void prepare(const AttentionBlock& block, const AttentionBackward& x, float* workspace) {
  const AttentionProblem& p = *block.problem;
  const AttentionSegment& s = block.segment;
  const int64_t queries = smaller(kQueryTile, s.query_len - block.begin), first = s.query_start + block.begin;
  Arena arena{workspace};
  float* out_columns = arena.take(kQueryTile * transposed_width(p.value_head_dim));
  float* out_grad_columns = arena.take(kQueryTile * transposed_width(p.value_head_dim));
  float* sums = arena.take(kQueryTile);
  load_transposed(rows_of<T>(x.out, s.batch, first, block.head), x.out.token_stride, queries, p.value_head_dim,
                  out_columns);
  load_transposed(rows_of<T>(x.out_grad, s.batch, first, block.head), x.out_grad.token_stride, queries,
                  p.value_head_dim, out_grad_columns);
  const ProductUnit unit;
  // In the order of dP's sums, so dP - delta is exactly zero in a row with a single unmasked key.
  sums_over_head<T>(queries, p.value_head_dim, out_columns, out_grad_columns, sums);
  float* deltas = x.delta + block.head * x.delta_head_stride + s.first_row + block.begin;
  for (int64_t i = 0; i < queries; ++i) deltas[i] = sums[i];
  if (!keys_seen(s, block.begin, queries, 0, s.kv_len).empty()) return;
  T* grad = rows_of<T>(x.query_grad, s.batch, first, block.head);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t d = 0; d < p.head_dim; ++d) from_float(0.0f, grad + i * x.query_grad.token_stride + d);
}

void wait_until(const int64_t* turn, int64_t expected) {
  constexpr int kPatience = 1000;
  for (int tries = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != expected; ++tries)
    if (tries > kPatience) sched_yield();
}

// dK and dV of one block of keys, summed over the query heads that share them, and the contribution of its keys to
// dQ.
template <typename T>
struct KeyBlock {
  const AttentionProblem& p;
  const AttentionSegment& s;
  const AttentionBackward& x;
  const AttentionKeyBlock& block;
  const int64_t keys;
  Arena arena;
  GradientTile<T> tile;
  float *key_rows, *key_grad, *value_grad, *query_grad, *scales;

  KeyBlock(const AttentionKeyBlock& b, const AttentionBackward& tensors, float* workspace)
      : p(*b.block.problem),
        s(b.block.segment),
        x(tensors),
        block(b),
        keys(smaller(kKeyBlock, s.kv_len - b.block.begin)),
        arena{workspace},
        tile(p, x, &arena),
        key_rows(arena.take(panels_of(p.head_dim) * kKeyPanel)),
        key_grad(arena.take(panels_of(p.head_dim) * kKeyPanel)),
        value_grad(arena.take(panels_of(p.value_head_dim) * kKeyPanel)),
        query_grad(arena.take(query_tile_floats(p))),
        scales(arena.take(kKeyBlock)) {
    fill(key_grad, panels_of(p.head_dim) * kKeyPanel, 0);
    fill(value_grad, panels_of(p.value_head_dim) * kKeyPanel, 0);
    fill(scales, kKeyBlock, 1);
    const int64_t kv_head = block.block.head, begin = block.block.begin;
    tile.load_keys(s, kv_head, begin, keys);
    load_head<HeadFor::kSums>(rows_of<T>(x.key, s.batch, s.kv_start + begin, kv_head), x.key.token_stride, keys,
                              p.head_dim, key_rows, kKeyPanel);
  }

  void run() {
    const int64_t begin = block.block.begin, kv_head = block.block.head;
    const int64_t group = p.query_heads / p.kv_heads, tiles = (s.query_len + kQueryTile - 1) / kQueryTile;
    const Range seeing = queries_seeing(s, begin, keys, 0, s.query_len);
    // From the last tile to the first: under a causal mask, all blocks need the last tile, so each block can follow
    // closely behind the previous one.
    for (int64_t number = group * tiles; number-- > 0;) {
      const int64_t query = number % tiles * kQueryTile, queries = smaller(kQueryTile, s.query_len - query);
      if (query + queries <= seeing.begin || query >= seeing.end) continue;
      add({&p, &s, kv_head * group + number / tiles, query, queries, begin, keys}, number);
    }
    store_head(key_grad, kKeyPanel, keys, p.head_dim, scales,
               rows_of<T>(x.key_grad, s.batch, s.kv_start + begin, kv_head), x.key_grad.token_stride);
    store_head(value_grad, kKeyPanel, keys, p.value_head_dim, scales,
               rows_of<T>(x.value_grad, s.batch, s.kv_start + begin, kv_head), x.value_grad.token_stride);
  }

  // Adds to the tile's dK, dV and dQ. The first block of keys of a tile of queries initializes its dQ, the last
  // stores it.
  void add(const TilePlace& t, int64_t number) {
    const Range seen = keys_seen(s, t.query, t.queries, 0, s.kv_len);
    const bool first = seen.begin / kKeyBlock * kKeyBlock == t.key, last = seen.end <= t.key + keys;
    tile.load_queries(t, p.scale);
    int64_t begin = kScorePanels, end = 0;
    for (int64_t panel = 0; panel * kScoreWidth < keys; ++panel) {
      const Range rows = tile.rows_seeing(t, panel);
      if (!rows.empty()) tile.recompute(t, panel, rows);
      fill(tile.score_grads_of(panel, 0), rows.begin * kScoreWidth, 0);
      fill(tile.score_grads_of(panel, rows.end), (t.queries - rows.end) * kScoreWidth, 0);
      if (rows.empty()) continue;
      begin = smaller(begin, panel);
      end = panel + 1;
      const int64_t in_panel = smaller(kScoreWidth, keys - panel * kScoreWidth), depth = rows.end - rows.begin;
      const int64_t at = panel * kScoreWidth * kHeadWidth, row = rows.begin * kHeadWidth;
      transposed_product(in_panel, p.value_head_dim, depth, tile.scores + rows.begin * kScoreWidth,
                         tile.out_grads + row, kQueryPanel, value_grad + at, kKeyPanel, true);
      transposed_product(in_panel, p.head_dim, depth, tile.score_grads_of(panel, rows.begin), tile.queries + row,
                         kQueryPanel, key_grad + at, kKeyPanel, true);
    }
    if (!first) wait_until(block.turns + number, t.key);
    float* sums = block.query_grads ? block.query_grads + number * query_tile_floats(p) : query_grad;
    const int64_t panel = kQueryTile * kHeadWidth;
    if (begin < end)
      row_product(t.queries, p.head_dim, smaller(end * kScoreWidth, keys) - begin * kScoreWidth,
                  tile.score_grads_of(begin, 0), kScorePanel, key_rows + begin * kScoreWidth * kHeadWidth, kKeyPanel,
                  sums, panel, !first);
    else if (first)
      fill(sums, query_tile_floats(p), 0);
    if (last)
      store_head(sums, panel, t.queries, p.head_dim, scales,
                 rows_of<T>(x.query_grad, s.batch, s.query_start + t.query, t.head), x.query_grad.token_stride);
    else
      __atomic_store_n(block.turns + number, next_to_add(t), __ATOMIC_RELEASE);
  }

  // The first key of the next block with unmasked keys for the tile. Blocks between the prefix and the band have
  // none.
  int64_t next_to_add(const TilePlace& t) const {
    const int64_t next = t.key + kKeyBlock, band = larger(0, t.query - s.band.pre) / kKeyBlock * kKeyBlock;
    return next >= s.band.prefix && next < band ? band : next;
  }
};

template <typename T>
void run(const AttentionKeyBlock& block, const AttentionBackward& x, float* workspace) {
  const ProductUnit unit;
  KeyBlock<T>(block, x, workspace).run();
}

constexpr AttentionBackwardTable kTable = {kKeyBlock,
                                           kQueryTile,
                                           query_tile_floats,
                                           prepare_floats,
                                           workspace_floats,
                                           PF_EACH_TYPE(prepare),
                                           PF_EACH_TYPE(run)};

}  // namespace

const AttentionBackwardTable& attention_backward_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
