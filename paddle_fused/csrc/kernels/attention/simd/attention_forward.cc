#include "kernels/attention/attention_table.h"
#include "kernels/attention/simd/attention_tiles.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The queries of a block share each loaded tile of keys and values. The keys of a tile are summed separately before
// they are added to the total. The tile, the block and one panel of scores fit in the L2 cache.
constexpr int64_t kQueries = 192, kKeys = 128;
// Panels are slightly longer than their rows, so rows of several panels do not map to the same cache sets.
constexpr int64_t kKeyPanel = (kKeys + 4) * kHeadWidth;
static_assert(kQueries % kScoreWidth == 0 && kKeys % kRowPadding == 0, "tiles are whole panels");

int64_t queries_of(const AttentionProblem& p) {
  return smaller(kQueries, rounded_up(p.query_len, kScoreWidth));
}
int64_t key_panel_of(const AttentionProblem& p) {
  return smaller(kKeyPanel, (rounded_up(p.kv_len, kRowPadding) + 4) * kHeadWidth);
}

int64_t workspace_floats(const AttentionProblem& p) {
  const int64_t queries = queries_of(p), panels = (head_width(p.head_dim) + head_width(p.value_head_dim)) / kHeadWidth;
  return queries * (transposed_width(p.head_dim) + head_width(p.value_head_dim) + 3) + key_panel_of(p) * panels +
         2 * kKeys * kScoreWidth + 8 * 16;
}

// Tiles of keys with unmasked keys for queries in [begin, begin + queries): first the prefix, then the band.
struct SeenTiles {
  int64_t prefix_end, band_begin, end;

  SeenTiles(const AttentionSegment& s, int64_t begin, int64_t queries)
      : prefix_end(s.band.prefix),
        band_begin(larger(0, begin - s.band.pre) / kKeys * kKeys),
        end(keys_seen(s, begin, queries, 0, s.kv_len).end) {}

  int64_t first() const { return prefix_end > 0 ? 0 : band_begin; }
  int64_t after(int64_t key) const {
    const int64_t next = key + kKeys;
    return next >= prefix_end && next < band_begin ? band_begin : next;
  }
};

// Running maximum, sum and rescaling factor of the queries in one panel.
struct RunningSoftmax {
  float* max;
  float* sum;
  float* rescale;

  // Replaces scores(i, j) by exp(scale * scores(i, j) - max_i) and updates the maximum and the sum. Scores below
  // `lowest` count as `lowest`.
  void update(float* scores, int64_t vectors, int64_t keys, float scale, float lowest) {
    for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
      const Vector old_max = load(max + i);
      Vector new_max = old_max;
      for (int64_t j = 0; j < keys; ++j) {
        const Vector score = at_least(load(scores + j * kScoreWidth + i) * scale, broadcast(lowest));
        store(scores + j * kScoreWidth + i, score);
        new_max = score > new_max ? score : new_max;
      }
      Vector total{};
      for (int64_t j = 0; j < keys; ++j) {
        const Vector weight = exp_below_overflow(load(scores + j * kScoreWidth + i) - new_max);
        total += weight;
        store(scores + j * kScoreWidth + i, weight);
      }
      const Vector factor = exp_below_overflow(old_max - new_max);
      store(rescale + i, factor);
      store(sum + i, load(sum + i) * factor + total);
      store(max + i, new_max);
    }
  }

  // Whether some query has had only masked keys so far, so further masked keys still count.
  bool hidden_keys_count(int64_t queries) const {
    for (int64_t i = 0; i < queries; ++i)
      if (max[i] <= kHiddenScore) return true;
    return false;
  }
};

void scale_rows(float* rows, int64_t panel, int64_t count, int64_t width, const float* factors) {
  for (int64_t i = 0; i < count; ++i) {
    if (factors[i] == 1.0f) continue;
    for (int64_t n = 0; n < width; n += kHeadWidth) {
      float* row = rows + n / kHeadWidth * panel + i * kHeadWidth;
      for (int64_t d = 0; d < kHeadWidth; d += kLanes) store(row + d, load(row + d) * factors[i]);
    }
  }
}

template <typename T>
struct ForwardBlock {
  const AttentionProblem& p;
  const AttentionSegment& s;
  const AttentionForward& x;
  const int64_t head, kv_head, begin, queries;
  const int64_t value_width, out_panel, key_panel;
  float *query_columns, *keys, *values, *out, *scores, *factors;
  RunningSoftmax softmax;

  ForwardBlock(const AttentionBlock& block, const AttentionForward& tensors, float* workspace)
      : p(*block.problem),
        s(block.segment),
        x(tensors),
        head(block.head),
        kv_head(block.head / (p.query_heads / p.kv_heads)),
        begin(block.begin),
        queries(smaller(kQueries, s.query_len - block.begin)),
        value_width(head_width(p.value_head_dim)),
        out_panel(queries_of(p) * kHeadWidth),
        key_panel(key_panel_of(p)) {
    Arena arena{workspace};
    const int64_t columns = queries_of(p);
    query_columns = arena.take(columns * transposed_width(p.head_dim));
    keys = arena.take(head_width(p.head_dim) / kHeadWidth * key_panel);
    values = arena.take(value_width / kHeadWidth * key_panel);
    out = arena.take(columns * value_width);
    scores = arena.take(kKeys * kScoreWidth);
    factors = arena.take(kKeys * kScoreWidth);
    softmax = {arena.take(columns), arena.take(columns), arena.take(columns)};
    fill(out, columns * value_width, 0);
    fill(softmax.max, columns, kHiddenScore);
    fill(softmax.sum, columns, 0);
    load_transposed(rows_of<T>(x.query, s.batch, s.query_start + begin, head), x.query.token_stride, queries,
                    p.head_dim, query_columns);
  }

  void load_keys(int64_t key, int64_t count) {
    load_head<HeadFor::kScores>(rows_of<T>(x.key, s.batch, s.kv_start + key, kv_head), x.key.token_stride, count,
                                p.head_dim, keys, key_panel);
    load_head<HeadFor::kSums>(rows_of<T>(x.value, s.batch, s.kv_start + key, kv_head), x.value.token_stride, count,
                              p.value_head_dim, values, key_panel);
  }

  // The queries of one panel, from `column` of the block on, attend to the keys of `place`. The first of these is
  // loaded key number `row`.
  void attend(const TilePlace& place, MaskState mask, int64_t column, int64_t row) {
    const int64_t vectors = (place.queries + kLanes - 1) / kLanes;
    const RunningSoftmax panel{softmax.max + column, softmax.sum + column, softmax.rescale + column};
    score_product<T>(place.keys, place.queries, p.head_dim, keys + row * kHeadWidth, key_panel,
                     query_columns + column * transposed_width(p.head_dim), scores);
    if (mask == MaskState::kNothingHidden && !p.bias.data && place.inside_band()) {
      RunningSoftmax(panel).update(scores, vectors, place.keys, p.scale, kHiddenScore);
    } else {
      scale_and_bias<T>(place, kQueriesContiguous, place.keys * kScoreWidth, scores);
      hide(place, mask, kQueriesContiguous, scores);
      RunningSoftmax(panel).update(scores, vectors, place.keys, 1, -__builtin_inff());
    }
    if (p.keep_probability < 1) {
      dropout_factors(place, kQueriesContiguous, factors);
      multiply(scores, factors, place.keys * kScoreWidth);
    }
    float* out_rows = out + column * kHeadWidth;
    scale_rows(out_rows, out_panel, place.queries, value_width, panel.rescale);
    transposed_product(place.queries, p.value_head_dim, place.keys, scores, values + row * kHeadWidth, key_panel,
                       out_rows, out_panel, true);
  }

  void run() {
    const SeenTiles seen(s, begin, queries);
    for (int64_t key = seen.first(); key < seen.end; key = seen.after(key)) {
      const int64_t end = smaller(key + kKeys, s.kv_len);
      bool loaded = false;
      for (int64_t column = 0; column < queries; column += kScoreWidth) {
        const int64_t query = begin + column, in_panel = smaller(kScoreWidth, queries - column);
        Range range = keys_seen(s, query, in_panel, key, end);
        if (range.empty()) continue;
        range.begin = key + (range.begin - key) / kRowPadding * kRowPadding;
        const TilePlace place{&p, &s, head, query, in_panel, range.begin, range.end - range.begin};
        const MaskState mask = mask_state(place);
        const RunningSoftmax panel{softmax.max + column, nullptr, nullptr};
        if (mask == MaskState::kAllHidden && !panel.hidden_keys_count(in_panel)) continue;
        if (!loaded) load_keys(key, end - key);
        loaded = true;
        attend(place, mask, column, range.begin - key);
      }
    }
    write();
  }

  void write() {
    const SoftmaxStatistics& to = x.statistics;
    const int64_t first = s.batch * to.batch_stride + (s.query_start + begin) * to.token_stride +
                          head * to.head_stride;
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t c = 0; c < to.copies; ++c) {
        to.max[first + i * to.token_stride + c] = softmax.max[i];
        to.sum[first + i * to.token_stride + c] = softmax.sum[i];
      }
      softmax.rescale[i] = softmax.sum[i] == 0 ? 0.0f : 1.0f / softmax.sum[i];
    }
    store_head(out, out_panel, queries, p.value_head_dim, softmax.rescale,
               rows_of<T>(x.out, s.batch, s.query_start + begin, head), x.out.token_stride);
  }
};

template <typename T>
void run(const AttentionBlock& block, const AttentionForward& x, float* workspace) {
  const ProductUnit unit;
  ForwardBlock<T>(block, x, workspace).run();
}

constexpr AttentionForwardTable kTable = {kQueries, workspace_floats, PF_EACH_TYPE(run)};

}  // namespace

const AttentionForwardTable& attention_forward_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
