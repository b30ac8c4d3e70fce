#include "kernels/dropout_add_norm_table.h"
#include "kernels/simd/math.h"
#include "kernels/simd/philox.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// A row is turned into floats, worked on in the processor's cache, and stored once: so one body serves every combination
// of the tensors' types.
template <typename T>
static inline void load_as(const void* from, int64_t first, int64_t count, float* to) {
  const T* x = static_cast<const T*>(from) + first;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(x[i]);
}
static inline void load_row(ElementType type, const void* from, int64_t first, int64_t count, float* to) {
  switch (type) {
    case ElementType::kFloat32:
      return load_as<float>(from, first, count, to);
    case ElementType::kBFloat16:
      return load_as<BFloat16>(from, first, count, to);
    case ElementType::kFloat16:
      return load_as<Float16>(from, first, count, to);
  }
}

template <typename T>
static inline void store_as(const float* from, int64_t first, int64_t count, void* to) {
  T* x = static_cast<T*>(to) + first;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(from[i], x + i);
}
static inline void store_row(ElementType type, const float* from, int64_t first, int64_t count, void* to) {
  switch (type) {
    case ElementType::kFloat32:
      return store_as<float>(from, first, count, to);
    case ElementType::kBFloat16:
      return store_as<BFloat16>(from, first, count, to);
    case ElementType::kFloat16:
      return store_as<Float16>(from, first, count, to);
  }
}

template <typename T>
static inline void round_as(const float* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    T rounded;
    from_float(from[i], &rounded);
    to[i] = to_float(rounded);
  }
}
static inline void round_row(ElementType type, const float* from, int64_t count, float* to) {
  switch (type) {
    case ElementType::kFloat32:
      return round_as<float>(from, count, to);
    case ElementType::kBFloat16:
      return round_as<BFloat16>(from, count, to);
    case ElementType::kFloat16:
      return round_as<Float16>(from, count, to);
  }
}

static inline void multiply(float* x, const float* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= y[i];
}

static inline void add(float* x, const float* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

static inline float row_scale(const DropoutAddNorm& p, int64_t row) {
  float scale = 1.0f;
  if (p.rowscale) load_row(p.type, p.rowscale, row, 1, &scale);
  return scale;
}

// x *= scale * layerscale
static inline void scale_row(const NormVectors& v, float scale, int64_t count, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= scale;
  if (v.layerscale) multiply(x, v.layerscale, count);
}

static inline bool drops(const DropoutAddNorm& p) { return p.keep_probability < 1.0; }

// factors[i] = 1 / keep where a random word is below keep * 2^32, else 0. One counter serves four neighbours: the offset
// is its low half, its high half numbers (row, group of four). Writes up to the next multiple of four.
static inline void dropout_factors(const DropoutAddNorm& p, int64_t row, float* factors) {
  const uint64_t threshold = static_cast<uint64_t>(p.keep_probability * 4294967296.0);
  const float kept = p.keep_probability > 0 ? static_cast<float>(1.0 / p.keep_probability) : 0.0f;
  const int64_t groups = (p.width + 3) / 4;
#pragma omp simd
  for (int64_t group = 0; group < groups; ++group) {
    uint32_t words[4];
    philox(p.offset, static_cast<uint64_t>(row * groups + group), p.seed, words);
    for (int w = 0; w < 4; ++w) factors[group * 4 + w] = words[w] < threshold ? kept : 0.0f;
  }
}

static inline void store_mask(const DropoutAddNorm& p, int64_t row, const float* factors, uint8_t* mask) {
  uint8_t* to = mask + row * p.width;
  for (int64_t i = 0; i < p.width; ++i) to[i] = factors ? factors[i] != 0.0f : 1;
}

void forward(const DropoutAddNorm& p, const NormVectors& v, int64_t begin, int64_t end, float* workspace, void* out,
             void* pre, uint8_t* mask, float* mean, float* rstd) {
  const int64_t width = p.width;
  float* z = workspace;
  float* other = z + dropout_add_norm_row(width);
  for (int64_t row = begin; row < end; ++row) {
    load_row(p.type, p.x0, row * width, width, z);
    if (p.rowscale || p.layerscale) scale_row(v, row_scale(p, row), width, z);
    if (drops(p)) {
      dropout_factors(p, row, other);
      multiply(z, other, width);
    }
    if (mask) store_mask(p, row, drops(p) ? other : nullptr, mask);
    if (p.residual) {
      load_row(p.pre_type, p.residual, row * width, width, other);
      add(z, other, width);
    }
    store_row(p.pre_type, z, row * width, width, pre);
    round_row(p.pre_type, z, width, z);

    float m = 0.0f;
    if (p.norm == NormKind::kLayerNorm) {
      m = static_cast<float>(sum(width, [z](int64_t i) { return z[i]; }) / static_cast<double>(width));
      mean[row] = m;
    }
    const double squares = sum(width, [z, m](int64_t i) { return (z[i] - m) * (z[i] - m); });
    const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(width)) + p.epsilon);
    rstd[row] = r;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) z[i] = (z[i] - m) * r;
    if (p.norm == NormKind::kRmsNorm) round_row(p.weight_type, z, width, z);
    multiply(z, v.weight, width);
    if (v.bias) add(z, v.bias, width);
    store_row(p.type, z, row * width, width, out);
  }
}

// With n = (z - mean) * rstd and g = dout * weight:
//   dz = (g - mean(g) - n * mean(g * n)) * rstd + dpre        (mean(g) in the layer norm only)
static inline void gradient_of_norm(const DropoutAddNorm& p, const NormVectors& v, float mean, float rstd,
                                    const NormVectorSums& sums, float* n, float* g, float* rounded) {
  const int64_t width = p.width;
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) n[i] = (n[i] - mean) * rstd;
  const bool is_rms = p.norm == NormKind::kRmsNorm;
  if (is_rms) round_row(p.weight_type, n, width, rounded);
  const float* scaled = is_rms ? rounded : n;
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    sums.weight[i] += g[i] * scaled[i];
    sums.bias[i] += g[i];
  }
  multiply(g, v.weight, width);
  const double count = static_cast<double>(width);
  const float mean_g = is_rms ? 0.0f : static_cast<float>(sum(width, [g](int64_t i) { return g[i]; }) / count);
  const float projected = static_cast<float>(sum(width, [g, n](int64_t i) { return g[i] * n[i]; }) / count);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) g[i] = (g[i] - mean_g - n[i] * projected) * rstd;
}

void backward(const DropoutAddNorm& p, const NormVectors& v, int64_t begin, int64_t end, float* workspace,
              const void* out_grad, const void* pre_grad, const void* pre, const float* mean, const float* rstd,
              const DropoutAddNormGradients& to, const NormVectorSums& sums) {
  const int64_t width = p.width;
  float* g = workspace;
  float* n = g + dropout_add_norm_row(width);
  float* other = n + dropout_add_norm_row(width);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * width;
    if (out_grad) {
      load_row(p.pre_type, pre, first, width, n);
      load_row(p.type, out_grad, first, width, g);
      gradient_of_norm(p, v, p.norm == NormKind::kLayerNorm ? mean[row] : 0.0f, rstd[row], sums, n, g, other);
    } else {
      for (int64_t i = 0; i < width; ++i) g[i] = 0.0f;
    }
    if (pre_grad) {
      load_row(p.pre_type, pre_grad, first, width, other);
      add(g, other, width);
    }
    if (to.residual) store_row(p.pre_type, g, first, width, to.residual);
    if (drops(p)) {
      dropout_factors(p, row, other);
      multiply(g, other, width);
    }
    const float scale = row_scale(p, row);
    if (to.rowscale || to.layerscale) {
      load_row(p.type, p.x0, first, width, other);
      multiply(other, g, width);
      const float* layerscale = v.layerscale;
      if (to.rowscale) {
        const double total = layerscale
                                 ? sum(width, [other, layerscale](int64_t i) { return other[i] * layerscale[i]; })
                                 : sum(width, [other](int64_t i) { return other[i]; });
        const float rounded = static_cast<float>(total);
        store_row(p.type, &rounded, row, 1, to.rowscale);
      }
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) sums.layerscale[i] += other[i] * scale;
    }
    if (to.x0) {
      if (p.rowscale || p.layerscale) scale_row(v, scale, width, g);
      store_row(p.type, g, first, width, to.x0);
    }
  }
}

constexpr DropoutAddNormTable kTable = {forward, backward};

}  // namespace

const DropoutAddNormTable& dropout_add_norm_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
