#include "kernels/optimizers/adam_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// The update is written once, for float32. 16-bit arrays are widened block by block into memory that stays in the L1
// cache.
constexpr int64_t kBlock = 512;

template <typename T>
void load(const void* from, int64_t begin, int64_t count, float* to) {
  const T* source = static_cast<const T*>(from) + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(source[i]);
}

template <typename T>
void store(const float* from, int64_t begin, int64_t count, void* to) {
  T* target = static_cast<T*>(to) + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) from_float(from[i], target + i);
}

// A block of an array as floats: the array's memory, or `scratch` with its values.
float* open(const AdamArray& array, int64_t begin, int64_t count, float* scratch) {
  if (!array.data) return nullptr;
  if (array.type == ElementType::kFloat32) return static_cast<float*>(array.data) + begin;
  if (array.type == ElementType::kBFloat16)
    load<BFloat16>(array.data, begin, count, scratch);
  else
    load<Float16>(array.data, begin, count, scratch);
  return scratch;
}

void close(const AdamArray& array, int64_t begin, int64_t count, const float* scratch) {
  if (!array.data || array.type == ElementType::kFloat32) return;
  if (array.type == ElementType::kBFloat16)
    store<BFloat16>(scratch, begin, count, array.data);
  else
    store<Float16>(scratch, begin, count, array.data);
}

template <bool kAmsgrad>
void update(const AdamScalars& s, int64_t count, const float* __restrict grad, float* __restrict weight,
            float* __restrict moment1, float* __restrict moment2, float* __restrict moment2_max) {
  const float sign = s.maximize ? -1.0f : 1.0f;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = sign * grad[i];
    const float m = s.beta1 * moment1[i] + s.one_minus_beta1 * g;
    const float v = s.beta2 * moment2[i] + s.one_minus_beta2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    float u = v;
    if (kAmsgrad) {
      u = v > moment2_max[i] ? v : moment2_max[i];
      moment2_max[i] = u;
    }
    // The two small terms are added first, so the weight is rounded once.
    weight[i] -= s.decay * weight[i] + s.step_size * (m / (__builtin_sqrtf(u) + s.epsilon));
  }
}

void run(const AdamScalars& scalars, const AdamArrays& arrays, int64_t begin, int64_t end) {
  alignas(64) float grad_block[kBlock], weight_block[kBlock], moment1_block[kBlock], moment2_block[kBlock],
      max_block[kBlock];
  const AdamScalars s = scalars;
  const AdamArray& weights = arrays.master.data ? arrays.master : arrays.param;
  for (; begin < end; begin += kBlock) {
    const int64_t count = end - begin < kBlock ? end - begin : kBlock;
    const float* grad = open(arrays.grad, begin, count, grad_block);
    float* weight = open(weights, begin, count, weight_block);
    float* moment1 = open(arrays.moment1, begin, count, moment1_block);
    float* moment2 = open(arrays.moment2, begin, count, moment2_block);
    float* moment2_max = open(arrays.moment2_max, begin, count, max_block);
    if (moment2_max)
      update<true>(s, count, grad, weight, moment1, moment2, moment2_max);
    else
      update<false>(s, count, grad, weight, moment1, moment2, nullptr);
    close(weights, begin, count, weight);
    close(arrays.moment1, begin, count, moment1);
    close(arrays.moment2, begin, count, moment2);
    close(arrays.moment2_max, begin, count, moment2_max);
    if (!arrays.master.data) continue;
    if (arrays.param.type == ElementType::kFloat32)
      store<float>(weight, begin, count, arrays.param.data);
    else
      close(arrays.param, begin, count, weight);
  }
}

constexpr AdamTable kTable = {run};

}  // namespace

const AdamTable& adam_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
