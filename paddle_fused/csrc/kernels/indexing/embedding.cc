#include "kernels/indexing/embedding.h"

#include <cstring>
#include <vector>

#include "kernels/indexing/embedding_table.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {

void embedding_forward(ElementType type, const EmbeddingShape& shape, const int64_t* ids, int64_t padding_idx,
                       const void* weight, void* out) {
  const int64_t row = shape.width * element_size(type);
  for_each_range(shape.count, shape.width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = static_cast<char*>(out) + i * row;
      if (padding_idx != kNoPadding && ids[i] == padding_idx)
        std::memset(to, 0, row);
      else
        std::memcpy(to, static_cast<const char*>(weight) + ids[i] * row, row);
    }
  });
}

void embedding_backward(ElementType type, const EmbeddingShape& shape, const int64_t* ids, int64_t padding_idx,
                        const void* dout, void* dweight) {
  // Counting sort: the positions of id v are positions[first[v] .. first[v + 1]), in order.
  std::vector<int64_t> first(shape.vocabulary + 2, 0), positions(shape.count);
  const auto counts = [&](int64_t i) { return padding_idx == kNoPadding || ids[i] != padding_idx; };
  for (int64_t i = 0; i < shape.count; ++i)
    if (counts(i)) ++first[ids[i] + 2];
  for (int64_t v = 0; v < shape.vocabulary; ++v) first[v + 2] += first[v + 1];
  for (int64_t i = 0; i < shape.count; ++i)
    if (counts(i)) positions[first[ids[i] + 1]++] = i;

  const auto sum_rows = PF_SELECT_TABLE(embedding_table).sum_rows[static_cast<int>(type)];
  const int64_t row = shape.width * element_size(type);
  ThreadWorkspace<float> totals(shape.width);
  for_each_range(shape.vocabulary, shape.width, [&](int64_t begin, int64_t end) {
    float* total = totals.of_this_thread();
    for (int64_t v = begin; v < end; ++v) {
      char* out = static_cast<char*>(dweight) + v * row;
      const int64_t occurrences = first[v + 1] - first[v];
      if (occurrences == 0)
        std::memset(out, 0, row);
      else
        sum_rows(dout, positions.data() + first[v], occurrences, shape.width, total, out);
    }
  });
}

}  // namespace paddle_fused::kernels
