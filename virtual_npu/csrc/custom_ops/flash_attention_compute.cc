#include <cmath>

#include "kernels/attention/attention.h"
#include "paddle/common/ddim.h"
#include "paddle/phi/core/generator.h"
#include "custom_ops/checks.h"
#include "custom_ops/flash_attention.h"
#include "element_type.h"

namespace virtual_npu {
namespace {

namespace kernels = paddle_fused::kernels;
using paddle::DataType;
using paddle::Tensor;

// CANN fills a 32-byte block per row.
constexpr int64_t kStatisticsCopies = contract::limits::attention_statistics;
// The band used with a mask, in both directions. There is no band without a mask.
constexpr int64_t kBand = contract::limits::attention_band;

bool drops(const FlashAttention& call) { return call.dropout > 0 && !call.is_test; }

// The kernels require a dense last dimension; other strides are arbitrary.
Tensor with_dense_rows(const Tensor& x) {
  return x.strides()[x.strides().size() - 1] == 1 ? x : dense(x);
}

// Batch, token and head stride of [B, S, N, D], or of [T, N, D] without a batch.
struct Strides {
  int64_t batch, token, head;

  explicit Strides(const Tensor& x) {
    const auto& s = x.strides();
    batch = s.size() == 4 ? s[0] : 0;
    token = s[s.size() - 3];
    head = s[s.size() - 2];
  }
};

kernels::AttentionInput input(const Tensor& x) {
  const Strides s(x);
  return {x.data(), s.batch, s.token, s.head};
}
kernels::AttentionOutput output(Tensor* x) {
  const Strides s(*x);
  return {x->data(), s.batch, s.token, s.head};
}

std::vector<int64_t> statistics_shape(const FlashAttention& call) {
  const auto q = call.query.shape();
  if (call.is_varlen) return {q[0], q[1], kStatisticsCopies};
  return {q[0], q[2], q[1], kStatisticsCopies};
}

// [B, N, Sq, 8], or [T, N, 8].
kernels::SoftmaxStatistics statistics(const FlashAttention& call, const Tensor& max, const Tensor& sum) {
  const auto q = call.query.shape();
  auto* max_data = const_cast<float*>(max.data<float>());
  auto* sum_data = const_cast<float*>(sum.data<float>());
  constexpr int64_t c = kStatisticsCopies;
  if (call.is_varlen) return {max_data, sum_data, 0, q[1] * c, c, c};
  return {max_data, sum_data, q[2] * q[1] * c, c, q[1] * c, c};
}

// The problem and the memory that it points to.
struct Prepared {
  kernels::AttentionProblem problem;
  Tensor mask;
  std::vector<kernels::AttentionBand> bands;
};

Prepared prepare(const FlashAttention& call) {
  const auto q = call.query.shape(), k = call.key.shape();
  Prepared prepared;
  kernels::AttentionProblem& p = prepared.problem;
  p.type = element_type(call.query.dtype());
  p.query_heads = q[q.size() - 2];
  p.kv_heads = k[k.size() - 2];
  p.head_dim = p.value_head_dim = q.back();
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  if (call.is_varlen) {
    p.segments = static_cast<int64_t>(call.query_ends.size());
    p.query_len = longest(call.query_ends);
    p.kv_len = longest(call.kv_ends);
    p.query_ends = call.query_ends.data();
    p.kv_ends = call.kv_ends.data();
  } else {
    p.segments = q[0];
    p.query_len = q[1];
    p.kv_len = k[1];
  }
  if (call.causal || call.attn_mask) {
    const bool triangle = call.causal || call.is_triangle_upper_mask;
    prepared.bands.assign(p.segments, {kBand, triangle ? 0 : kBand});
    p.bands = prepared.bands.data();
  }
  if (!call.causal && call.attn_mask) {
    const Tensor& mask = prepared.mask = with_dense_rows(*call.attn_mask);
    const auto shape = mask.shape();
    const auto& s = mask.strides();
    p.mask.data = reinterpret_cast<const uint8_t*>(mask.data<bool>());
    p.mask.query_stride = s[s.size() - 2];
    if (shape.size() == 4) {
      p.mask.batch_stride = shape[0] == 1 ? 0 : s[0];
      p.mask.head_stride = shape[1] == 1 ? 0 : s[1];
    }
  }
  if (drops(call)) p.keep_probability = 1.0 - static_cast<double>(call.dropout);
  return prepared;
}

// Elements of the dropout mask.
int64_t numel_of(const FlashAttention& call) {
  const auto q = call.query.shape(), k = call.key.shape();
  if (!call.is_varlen) return q[0] * q[2] * q[1] * k[1];
  int64_t numel = 0;
  for (size_t i = 0; i < call.query_ends.size(); ++i) {
    const int64_t queries = call.query_ends[i] - (i ? call.query_ends[i - 1] : 0);
    numel += q[1] * queries * (call.kv_ends[i] - (i ? call.kv_ends[i - 1] : 0));
  }
  return numel;
}

Tensor scalar(int64_t value, const phi::Place& place) {
  Tensor x = paddle::empty({1}, DataType::INT64, place);
  *x.data<int64_t>() = value;
  return x;
}

}  // namespace

std::vector<Tensor> forward(const FlashAttention& call, const paddle::optional<Tensor>& fixed_seed_offset) {
  const phi::Place place = call.query.place();
  Prepared prepared = prepare(call);
  kernels::AttentionProblem& problem = prepared.problem;
  // Random numbers are drawn only if they are used, so attention without dropout does not advance the generator.
  if (drops(call)) {
    if (fixed_seed_offset) {
      problem.seed = fixed_seed_offset->data<int64_t>()[0];
      problem.offset = fixed_seed_offset->data<int64_t>()[1];
    } else {
      const auto& generator = phi::DefaultCustomDeviceGenerator(place);
      problem.seed = generator->Random64();
      problem.offset = generator->Random64();
    }
  }
  Tensor score = paddle::empty(call.query.shape(), call.query.dtype(), place);
  Tensor max = paddle::empty(statistics_shape(call), DataType::FLOAT32, place);
  Tensor sum = paddle::empty(statistics_shape(call), DataType::FLOAT32, place);
  if (call.query.numel() > 0) {
    const Tensor query = with_dense_rows(call.query), key = with_dense_rows(call.key),
                 value = with_dense_rows(call.value);
    kernels::attention_forward(problem, input(query), input(key), input(value), output(&score),
                               statistics(call, max, sum));
  }
  return {score,
          max,
          sum,
          paddle::zeros({1}, call.query.dtype(), place),
          scalar(static_cast<int64_t>(problem.seed), place),
          scalar(static_cast<int64_t>(problem.offset), place),
          scalar(numel_of(call), place)};
}

std::vector<Tensor> backward(const FlashAttention& call, const FlashAttentionSaved& saved) {
  const phi::Place place = call.query.place();
  Prepared prepared = prepare(call);
  kernels::AttentionProblem& problem = prepared.problem;
  problem.seed = *saved.seed.data<int64_t>();
  problem.offset = *saved.offset.data<int64_t>();
  Tensor query_grad = paddle::empty(call.query.shape(), call.query.dtype(), place);
  Tensor key_grad = paddle::empty(call.key.shape(), call.key.dtype(), place);
  Tensor value_grad = paddle::empty(call.value.shape(), call.value.dtype(), place);
  if (call.key.numel() > 0) {
    const Tensor query = with_dense_rows(call.query), key = with_dense_rows(call.key),
                 value = with_dense_rows(call.value), score = with_dense_rows(saved.attention_score),
                 score_grad = with_dense_rows(saved.attention_score_grad);
    kernels::attention_backward(problem, input(query), input(key), input(value), input(score), input(score_grad),
                                statistics(call, saved.softmax_max, saved.softmax_sum), output(&query_grad),
                                output(&key_grad), output(&value_grad));
  }
  return {query_grad, key_grad, value_grad};
}

}  // namespace virtual_npu
