#include <algorithm>

#include "ops/attention/flash_attention.h"
#include "paddle/common/ddim.h"

namespace paddle_fused::ops::flash_attention {
namespace {

std::vector<int64_t> read_lengths(const char* name, const Tensor& x) {
  check_places(kOp, {{name, x}});
  if (x.dtype() != DataType::INT64 || x.shape().size() != 1)
    refuse(kOp, std::string(name) + " is " + text(x.dtype()) + " of shape " + text(x.shape()) +
                    "; accepted: one-dimensional int64.");
  const Tensor values = dense(x);
  return {values.data<int64_t>(), values.data<int64_t>() + values.numel()};
}

void check_ends(const char* name, const std::vector<int64_t>& ends, int64_t tokens) {
  const std::string came = std::string(name) + " is " + text(ends);
  if (!std::is_sorted(ends.begin(), ends.end()) || (!ends.empty() && ends.front() < 0))
    refuse(kOp, came + "; accepted: non-decreasing cumulative lengths (for lengths 3, 2: [3, 5]).");
  if (!ends.empty() && ends.back() > tokens)
    refuse(kOp, came + ", but the tensor has " + std::to_string(tokens) +
                    " tokens; accepted: a last element of at most this number.");
}

struct SegmentLengths {
  int64_t query, kv;
};

std::vector<SegmentLengths> lengths_of(const std::vector<int64_t>& query_ends, const std::vector<int64_t>& kv_ends) {
  std::vector<SegmentLengths> lengths;
  for (size_t i = 0; i < query_ends.size(); ++i)
    lengths.push_back({query_ends[i] - (i ? query_ends[i - 1] : 0), kv_ends[i] - (i ? kv_ends[i - 1] : 0)});
  return lengths;
}

// Strides of [B, N, Sq, Skv] or [Sq, Skv] except the last, 0 for broadcast dimensions.
struct ScoreStrides {
  int64_t batch = 0, head = 0, query = 0;

  explicit ScoreStrides(const Tensor& x) {
    const auto shape = x.shape();
    const auto& strides = x.strides();
    const size_t rank = shape.size();
    const auto stride = [&](size_t from_end) {
      return rank < from_end || shape[rank - from_end] == 1 ? 0 : strides[rank - from_end];
    };
    query = stride(2);
    head = stride(3);
    batch = stride(4);
  }
};

const AttentionLayout& layout_of(const Call& call) {
  const AttentionLayout* layout = find_attention_layout(call.layout);
  if (!layout) refuse(kOp, "layout is " + call.layout + "; accepted: " + kAttentionLayouts + ".");
  return *layout;
}

// The sizes of tensors with matching shapes.
AttentionSizes checked_sizes(const Call& call, const AttentionLayout& layout) {
  check_places(kOp, {{"query", call.query}, {"key", call.key}, {"value", call.value}});
  const Shape query = call.query.shape(), key = call.key.shape(), value = call.value.shape();
  const std::string came = "query has shape " + text(query) + ", key " + text(key) + " and value " + text(value) +
                           " in layout " + layout.name;
  if (query.size() != layout.rank || key.size() != layout.rank || value.size() != layout.rank)
    refuse(kOp, came + "; accepted: " + std::to_string(layout.rank) + " dimensions.");
  if (layout.merged() && call.num_heads <= 0)
    refuse(kOp, "num_heads is " + std::to_string(call.num_heads) + "; layout " + layout.name +
                    " requires the number of query heads, because its last dimension combines heads and head size.");
  const AttentionSizes s = attention_sizes(layout, call.num_heads, query, key, value);
  if (layout.merged() && (s.head_dim <= 0 || query[2] != s.query_heads * s.head_dim || s.kv_heads <= 0 ||
                          key[2] != s.kv_heads * s.head_dim || value[2] != s.kv_heads * s.value_head_dim))
    refuse(kOp, came + "; with num_heads = " + std::to_string(call.num_heads) +
                    " the last dimensions must be multiples of the head size: query's num_heads * D, key's Nkv * D, "
                    "value's Nkv * Dv.");
  if (s.query_heads == 0 || s.kv_heads == 0 || s.head_dim == 0 || s.value_head_dim == 0)
    refuse(kOp, came + "; accepted: at least one head with a size of at least one.");
  if (!layout.varlen() && (query[layout.batch] != key[layout.batch] || query[layout.batch] != value[layout.batch]))
    refuse(kOp, came + "; accepted: equal batch sizes.");
  if (key[layout.token] != value[layout.token] || (!layout.merged() && key[layout.head] != value[layout.head]))
    refuse(kOp, came + "; accepted: equal numbers of tokens and heads in key and value.");
  if (!layout.merged() && query.back() != key.back())
    refuse(kOp, came + "; accepted: equal head sizes of query and key.");
  if (s.value_head_dim > s.head_dim)
    refuse(kOp, came + "; value's head size (" + std::to_string(s.value_head_dim) + ") must not exceed key's (" +
                    std::to_string(s.head_dim) + "). Pad query and key with zeros.");
  if (s.query_heads % s.kv_heads != 0)
    refuse(kOp, came + "; the number of query heads (" + std::to_string(s.query_heads) +
                    ") must be a multiple of the number of key heads (" + std::to_string(s.kv_heads) + ").");
  return s;
}

}  // namespace

Tensor with_dense_rows(const Tensor& x) {
  return x.shape().back() == 1 || x.strides()[x.strides().size() - 1] == 1 ? x : dense(x);
}

Problem::Problem(const Call& call)
    : layout_(layout_of(call)), sizes_(checked_sizes(call, layout_)) {
  check_float(kOp, {"query", call.query});
  check_same_dtype(kOp, {{"query", call.query}, {"key", call.key}, {"value", call.value}});
  if (!(call.dropout >= 0 && call.dropout <= 1))
    refuse(kOp, "dropout is " + std::to_string(call.dropout) + "; accepted: a probability from 0 to 1.");
  query = with_dense_rows(call.query);
  key = with_dense_rows(call.key);
  value = with_dense_rows(call.value);
  const AttentionSizes& s = sizes();
  kernel.type = element_type(call.query.dtype());
  kernel.query_heads = s.query_heads;
  kernel.kv_heads = s.kv_heads;
  kernel.head_dim = s.head_dim;
  kernel.value_head_dim = s.value_head_dim;
  kernel.scale = call.scale;
  kernel.keep_probability = 1.0 - static_cast<double>(call.dropout);
  read_sequences(call);
  read_bands(call);
  if (call.bias) read_bias(*call.bias);
  if (call.mask) read_mask(*call.mask);
}

bool Problem::empty() const { return query.numel() == 0 || key.numel() == 0; }

bool Problem::covers_all_tokens() const {
  if (!layout().varlen()) return true;
  return !query_ends_.empty() && query_ends_.back() == sizes().query_tokens && kv_ends_.back() == sizes().kv_tokens;
}

void Problem::read_sequences(const Call& call) {
  if (!layout().varlen()) {
    if (call.query_ends || call.key_ends)
      refuse(kOp, "query_ends and key_ends are passed with layout " + call.layout + "; accepted: layout TND.");
    kernel.segments = sizes().batch;
    kernel.query_len = sizes().query_tokens;
    kernel.kv_len = sizes().kv_tokens;
    return;
  }
  if (!call.query_ends || !call.key_ends)
    refuse(kOp, "layout TND requires query_ends and key_ends, the cumulative lengths of at least one sequence.");
  query_ends_ = read_lengths("query_ends", *call.query_ends);
  kv_ends_ = read_lengths("key_ends", *call.key_ends);
  if (query_ends_.size() != kv_ends_.size())
    refuse(kOp, "query_ends has " + std::to_string(query_ends_.size()) + " elements and key_ends " +
                    std::to_string(kv_ends_.size()) + "; accepted: one element per sequence for both.");
  // Unused entries at the end are zeros: [2, 5, 9, 0, 0].
  while (query_ends_.size() > 1 && query_ends_.back() == 0 && kv_ends_.back() == 0) {
    query_ends_.pop_back();
    kv_ends_.pop_back();
  }
  check_ends("query_ends", query_ends_, sizes().query_tokens);
  check_ends("key_ends", kv_ends_, sizes().kv_tokens);
  kernel.segments = static_cast<int64_t>(query_ends_.size());
  kernel.query_ends = query_ends_.data();
  kernel.kv_ends = kv_ends_.data();
  kernel.query_len = kernel.kv_len = 0;
  for (const SegmentLengths& s : lengths_of(query_ends_, kv_ends_)) {
    kernel.query_len = std::max(kernel.query_len, s.query);
    kernel.kv_len = std::max(kernel.kv_len, s.kv);
  }
}

void Problem::read_bands(const Call& call) {
  // Beyond any sequence, and small enough to avoid overflow in the sum with Skv - Sq.
  constexpr int64_t kUnbounded = int64_t{1} << 40;
  const size_t count = call.bands.size() / 3, segments = static_cast<size_t>(kernel.segments);
  // In TND, there may be unused entries, as in query_ends.
  const bool fits = count == 1 || count == segments || (count > segments && layout().varlen());
  if (count == 0 || call.bands.size() % 3 != 0 || !fits)
    refuse(kOp, "bands has " + std::to_string(call.bands.size()) + " numbers; accepted: low, high and prefix, once or "
                    "for each of the " + std::to_string(segments) + " sequences.");
  if (call.align != "top_left" && call.align != "bottom_right")
    refuse(kOp, "align is " + call.align + "; accepted: top_left, bottom_right.");
  std::vector<SegmentLengths> lengths(segments, {kernel.query_len, kernel.kv_len});
  if (layout().varlen()) lengths = lengths_of(query_ends_, kv_ends_);
  for (size_t i = 0; i < segments; ++i) {
    const int64_t* band = call.bands.data() + (count == 1 ? 0 : 3 * i);
    const int64_t low = std::clamp(band[0], -kUnbounded, kUnbounded);
    const int64_t high = std::clamp(band[1], -kUnbounded, kUnbounded), prefix = band[2];
    if (prefix < 0 || prefix > lengths[i].kv)
      refuse(kOp, "a prefix is " + std::to_string(prefix) + "; accepted: a length from 0 to the number of keys, which "
                      "is " + std::to_string(lengths[i].kv) + " in sequence " + std::to_string(i) + ".");
    const int64_t d = call.align == "bottom_right" ? lengths[i].kv - lengths[i].query : 0;
    bands_.push_back({-(low + d), high + d, prefix});
  }
  kernel.bands = bands_.data();
}

void Problem::read_bias(const Tensor& bias) {
  check_places(kOp, {{"query", query}, {"bias", bias}});
  check_same_dtype(kOp, {{"query", query}, {"bias", bias}});
  const Shape shape = bias.shape();
  const Shape scores = {sizes().batch, sizes().query_heads, sizes().query_tokens, sizes().kv_tokens};
  bool fits = shape.size() == 4 && shape[3] == scores[3] && !layout().varlen();
  for (size_t i = 0; fits && i < 3; ++i) fits = shape[i] == scores[i] || shape[i] == 1;
  if (!fits)
    refuse(kOp, "bias has shape " + text(shape) + " in layout " + layout().name + "; accepted: [B, N, Sq, Skv] = " +
                    text(scores) + ", where B, N and Sq may be 1, in layouts other than TND.");
  bias_ = with_dense_rows(bias);
  const ScoreStrides strides(bias_);
  // CANN's position bias is added before scaling.
  kernel.bias = {bias_.data(), strides.batch, strides.head, strides.query, kernel.scale};
}

void Problem::read_mask(const Tensor& mask) {
  check_places(kOp, {{"query", query}, {"mask", mask}});
  if (mask.dtype() != DataType::BOOL)
    refuse(kOp, "mask is " + text(mask.dtype()) + "; accepted: bool, where True means masked. Cast it, or use "
                    "(mask != 0).");
  const Shape shape = mask.shape();
  const Shape matrix = {kernel.query_len, kernel.kv_len};
  bool fits = shape == matrix;
  if (!layout().varlen() && shape.size() == 4)
    fits = (shape[0] == sizes().batch || shape[0] == 1) && (shape[1] == sizes().query_heads || shape[1] == 1) &&
           shape[2] == matrix[0] && shape[3] == matrix[1];
  if (!fits)
    refuse(kOp, "mask has shape " + text(shape) + "; accepted: [Sq, Skv] = " + text(matrix) +
                    (layout().varlen() ? ", the longest sequences."
                                       : ", and [B or 1, N or 1, Sq, Skv] with B = " + std::to_string(sizes().batch) +
                                             " and N = " + std::to_string(sizes().query_heads) + "."));
  mask_ = with_dense_rows(mask);
  const ScoreStrides strides(mask_);
  kernel.mask = {reinterpret_cast<const uint8_t*>(mask_.data<bool>()), strides.batch, strides.head, strides.query};
}

kernels::AttentionInput input_of(const AttentionLayout& layout, const Tensor& x, int64_t head_dim) {
  const auto& strides = x.strides();
  return {x.data(), layout.varlen() ? 0 : strides[layout.batch], strides[layout.token],
          layout.merged() ? head_dim : strides[layout.head]};
}

kernels::AttentionOutput output_of(const AttentionLayout& layout, Tensor* x, int64_t head_dim) {
  const kernels::AttentionInput from = input_of(layout, *x, head_dim);
  return {x->data(), from.batch_stride, from.token_stride, from.head_stride};
}

kernels::AttentionBiasGrad bias_grad_of(Tensor* bias_grad) {
  if (!bias_grad) return {};
  const ScoreStrides strides(*bias_grad);
  return {bias_grad->data(), strides.batch, strides.head, strides.query};
}

kernels::SoftmaxStatistics statistics_of(const Problem& problem, const Tensor& max, const Tensor& sum) {
  constexpr int64_t c = kStatisticsCopies;
  const AttentionSizes& s = problem.sizes();
  auto* max_data = const_cast<float*>(max.data<float>());
  auto* sum_data = const_cast<float*>(sum.data<float>());
  if (problem.layout().varlen()) return {max_data, sum_data, 0, s.query_heads * c, c, c};
  return {max_data, sum_data, s.query_heads * s.query_tokens * c, c, s.query_tokens * c, c};
}

}  // namespace paddle_fused::ops::flash_attention
