#include "kernels/norms/dropout_add_norm_table.h"
#include "kernels/norms/simd/dropout_factors.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// A row is read once, processed in the caches and stored once. T is the type of x0 and out, P the type of pre, W the
// type of weight.

static inline bool drops(const DropoutAddNorm& p) { return p.keep_probability < 1.0; }

template <typename T>
static inline const T* at(const void* base, int64_t element) {
  return base ? static_cast<const T*>(base) + element : nullptr;
}
template <typename T>
static inline T* at(void* base, int64_t element) {
  return base ? static_cast<T*>(base) + element : nullptr;
}

template <typename T>
static inline float row_scale(const DropoutAddNorm& p, int64_t row) {
  return p.rowscale ? to_float(*at<T>(p.rowscale, row)) : 1.0f;
}

template <typename Main>
static inline void bring_in_order(float* sums, int64_t width) {
  for (int64_t i = 0; sums && i < width; i += kPair)
    store<Main>(sums + i, load<float>(sums + i, Whole{}), Whole{}, Cached{});
}

template <typename Main>
static inline void store_mask(const float* factors, int64_t width, uint8_t* mask) {
  for_each_pair(0, width, [=](int64_t i, auto) {
    float elements[kPair];
    store<Main>(elements, load<float>(factors + i, Whole{}), Whole{}, Cached{});
    for (int64_t k = 0; k < kPair && i + k < width; ++k) mask[i + k] = elements[k] != 0.0f;
  });
}

template <typename T, typename P, typename W, typename Where>
static inline void forward_rows(const DropoutAddNorm& p, int64_t begin, int64_t end, float* workspace, T* out, P* pre,
                                uint8_t* mask, float* mean, float* rstd, Where where) {
  using Main = MainOf<T, P, W>;
  const int64_t width = p.width;
  const bool is_rms = p.norm == NormKind::kRmsNorm, dropped = drops(p);
  const T* layerscale = at<T>(p.layerscale, 0);
  const W *weight = at<W>(p.weight, 0), *bias = at<W>(p.bias, 0);
  // Both in the order of Main's Pairs.
  float* z = workspace;
  float* factors = z + dropout_add_norm_row(width);
  const Dropout dropout = dropout_of(dropped ? p.keep_probability : 0.0, p.seed, p.offset);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * width;
    const T* x0 = at<T>(p.x0, first);
    const P* residual = at<P>(p.residual, first);
    P* pre_row = pre + first;
    T* out_row = out + first;
    const float scale = row_scale<T>(p, row);
    if (dropped) dropout_factors<Main>(dropout, row, width, factors);
    if (mask && dropped) store_mask<Main>(factors, width, mask + first);
    if (mask && !dropped) __builtin_memset(mask + first, 1, width);

    const double total = sum_of_pairs(width, [&](int64_t i, auto part) {
      Pair v = load<Main>(x0 + i, part) * scale;
      if (layerscale) v = v * load<Main>(layerscale + i, part);
      if (dropped) v = v * load<float>(factors + i, Whole{});
      if (residual) v = v + load<Main>(residual + i, part);
      store<Main>(pre_row + i, v, part, where);
      v = rounded<Main, P>(v);
      store<float>(z + i, v, Whole{}, Cached{});
      return is_rms ? v * v : v;
    });
    float m = 0.0f;
    double squares = total;
    if (!is_rms) {
      m = static_cast<float>(total / static_cast<double>(width));
      mean[row] = m;
      squares = sum_of_pairs(width, [=](int64_t i, auto part) {
        const Pair v = only<Main>(load<float>(z + i, Whole{}) - m, part);
        return v * v;
      });
    }
    const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + p.epsilon);
    rstd[row] = r;
    for_each_pair(0, width, [=](int64_t i, auto part) {
      Pair v = (load<float>(z + i, Whole{}) - m) * r;
      if (is_rms) v = rounded<Main, W>(v);
      v = v * load<Main>(weight + i, part);
      if (bias) v = v + load<Main>(bias + i, part);
      store<Main>(out_row + i, v, part, where);
      __builtin_prefetch(x0 + width + i);
      if (residual) __builtin_prefetch(residual + width + i);
    });
  }
}

// The gradients of rowscale and layerscale, which need x0. d[width] is the gradient of x0 * rowscale * layerscale. d
// and the sums are in the order of Main's Pairs.
template <typename T, typename Main>
static inline void gradients_of_scales(const DropoutAddNorm& p, int64_t row, const float* d, T* drowscale,
                                       float* layerscale_sums) {
  const T *x0 = at<T>(p.x0, row * p.width), *layerscale = at<T>(p.layerscale, 0);
  const float scale = row_scale<T>(p, row);
  const double total = sum_of_pairs(p.width, [=](int64_t i, auto part) {
    const Pair v = load<Main>(x0 + i, part) * load<float>(d + i, Whole{});
    if (layerscale_sums)
      store<float>(layerscale_sums + i, load<float>(layerscale_sums + i, Whole{}) + v * scale, Whole{}, Cached{});
    return layerscale ? v * load<Main>(layerscale + i, part) : v;
  });
  if (drowscale) from_float(static_cast<float>(total), drowscale + row);
}

// With n = (z - mean) * rstd and g = dout * weight:
//   dz = (g - mean(g) - n * mean(g * n)) * rstd + dpre        (mean(g) in the layer norm only)
template <typename T, typename P, typename W, typename Where>
static inline void backward_rows(const DropoutAddNorm& p, int64_t begin, int64_t end, float* workspace,
                                 const void* out_grad, const void* pre_grad, const void* pre, const float* mean,
                                 const float* rstd, const DropoutAddNormGradients& to, const NormVectorSums& sums,
                                 Where where) {
  using Main = MainOf<T, P, W>;
  const int64_t width = p.width;
  const bool is_rms = p.norm == NormKind::kRmsNorm, dropped = drops(p), scales = to.rowscale || to.layerscale;
  const T* layerscale = at<T>(p.layerscale, 0);
  const W* weight = at<W>(p.weight, 0);
  // Both are in the order of Main's Pairs, and so are the sums until all rows are added.
  float* d = workspace;
  float* factors = d + dropout_add_norm_row(width);
  const Dropout dropout = dropout_of(dropped ? p.keep_probability : 0.0, p.seed, p.offset);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * width;
    const T* dout = at<T>(out_grad, first);
    const P *dpre = at<P>(pre_grad, first), *z = at<P>(pre, first);
    T* dx0 = at<T>(to.x0, first);
    P* dresidual = at<P>(to.residual, first);
    const float m = is_rms ? 0.0f : mean[row], r = rstd[row], scale = row_scale<T>(p, row);
    float mean_g = 0.0f, projected = 0.0f;
    if (dout) {
      Sum g_total, projected_total;
      for_each_block(width, [&](int64_t from, int64_t until) {
        Pair g_sum{};
        add_block(projected_total, from, until, [&](int64_t i, auto part) {
          const Pair n = (load<Main>(z + i, part) - m) * r, dy = load<Main>(dout + i, part);
          const Pair scaled = is_rms ? rounded<Main, W>(n) : n;
          store<float>(sums.weight + i, load<float>(sums.weight + i, Whole{}) + dy * scaled, Whole{}, Cached{});
          if (sums.bias) store<float>(sums.bias + i, load<float>(sums.bias + i, Whole{}) + dy, Whole{}, Cached{});
          const Pair g = dy * load<Main>(weight + i, part);
          g_sum = g_sum + g;
          return g * n;
        });
        add_lanes(g_total, g_sum);
      });
      if (!is_rms) mean_g = static_cast<float>(total(g_total) / static_cast<double>(width));
      projected = static_cast<float>(total(projected_total) / static_cast<double>(width));
    }
    if (dropped) dropout_factors<Main>(dropout, row, width, factors);
    for_each_pair(0, width, [=](int64_t i, auto part) {
      Pair v{};
      if (dout) {
        const Pair n = (load<Main>(z + i, part) - m) * r;
        v = (load<Main>(dout + i, part) * load<Main>(weight + i, part) - mean_g - n * projected) * r;
      }
      if (dpre) v = v + load<Main>(dpre + i, part);
      if (dresidual) store<Main>(dresidual + i, v, part, where);
      if (dropped) v = v * load<float>(factors + i, Whole{});
      if (scales) store<float>(d + i, v, Whole{}, Cached{});
      v = v * scale;
      if (layerscale) v = v * load<Main>(layerscale + i, part);
      if (dx0) store<Main>(dx0 + i, v, part, where);
      __builtin_prefetch(z + width + i);
      __builtin_prefetch(dout + width + i);
    });
    if (scales) gradients_of_scales<T, Main>(p, row, d, at<T>(to.rowscale, 0), sums.layerscale);
  }
  bring_in_order<Main>(sums.weight, width);
  bring_in_order<Main>(sums.bias, width);
  bring_in_order<Main>(sums.layerscale, width);
}

template <typename T, typename P, typename W>
void forward(const DropoutAddNorm& p, int64_t begin, int64_t end, float* workspace, bool stream, void* out, void* pre,
             uint8_t* mask, float* mean, float* rstd) {
  T* to = static_cast<T*>(out);
  P* z = static_cast<P*>(pre);
  if (stream && streams_to(to, p.width * sizeof(T)) && streams_to(z, p.width * sizeof(P))) {
    forward_rows<T, P, W>(p, begin, end, workspace, to, z, mask, mean, rstd, Streamed{});
    finish_streams();
  } else {
    forward_rows<T, P, W>(p, begin, end, workspace, to, z, mask, mean, rstd, Cached{});
  }
}

template <typename T, typename P, typename W>
void backward(const DropoutAddNorm& p, int64_t begin, int64_t end, float* workspace, bool stream, const void* out_grad,
              const void* pre_grad, const void* pre, const float* mean, const float* rstd,
              const DropoutAddNormGradients& to, const NormVectorSums& sums) {
  if (stream && streams_to(to.x0, p.width * sizeof(T)) && streams_to(to.residual, p.width * sizeof(P))) {
    backward_rows<T, P, W>(p, begin, end, workspace, out_grad, pre_grad, pre, mean, rstd, to, sums, Streamed{});
    finish_streams();
  } else {
    backward_rows<T, P, W>(p, begin, end, workspace, out_grad, pre_grad, pre, mean, rstd, to, sums, Cached{});
  }
}

using F = float;
using B = BFloat16;
using H = Float16;
constexpr DropoutAddNormTable kTable = {
    {{{forward<F, F, F>, forward<F, F, F>}, {forward<F, F, F>, forward<F, F, F>}},
     {{forward<B, B, B>, forward<B, B, F>}, {forward<B, F, B>, forward<B, F, F>}},
     {{forward<H, H, H>, forward<H, H, F>}, {forward<H, F, H>, forward<H, F, F>}}},
    {{{backward<F, F, F>, backward<F, F, F>}, {backward<F, F, F>, backward<F, F, F>}},
     {{backward<B, B, B>, backward<B, B, F>}, {backward<B, F, B>, backward<B, F, F>}},
     {{backward<H, H, H>, backward<H, H, F>}, {backward<H, F, H>, backward<H, F, F>}}},
};

}  // namespace

const DropoutAddNormTable& dropout_add_norm_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
