#include "kernels/indexing/embedding_table.h"
#include "kernels/simd/load_store.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

template <typename T>
void sum_rows(const void* rows_data, const int64_t* positions, int64_t count, int64_t width, float* total,
              void* out_data) {
  const T* rows = static_cast<const T*>(rows_data);
  T* out = static_cast<T*>(out_data);
  for (int64_t i = 0; i < width; ++i) total[i] = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    const T* row = rows + positions[p] * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) total[i] += to_float(row[i]);
  }
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) from_float(total[i], out + i);
}

constexpr EmbeddingTable kTable = {{sum_rows<float>, sum_rows<BFloat16>, sum_rows<Float16>}};

}  // namespace

const EmbeddingTable& embedding_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
