#include "kernels/indexing/moe.h"

#include <cstring>
#include <vector>

#include "kernels/indexing/moe_table.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"

namespace paddle_fused::kernels {
namespace {

// Radix sort of the experts, lowest digit first. Only the largest models have more experts than one digit can
// represent.
constexpr int kDigitBits = 12;
constexpr int64_t kDigits = 1 << kDigitBits;

// Turns counts, which start at first[1], into the start position of each digit.
void accumulate(std::vector<int32_t>* first) {
  for (int64_t digit = 0; digit < kDigits; ++digit) (*first)[digit + 1] += (*first)[digit];
}

template <typename Index>
int64_t places(const Index* experts, int64_t entries, int32_t* place) {
  std::vector<int32_t> low(kDigits + 1, 0), high(kDigits + 1, 0);
  bool one_digit = true;
  for (int64_t i = 0; i < entries; ++i) {
    if (experts[i] < 0 || experts[i] >= kMoeExpertLimit) return i;
    one_digit &= experts[i] < kDigits;
    ++low[experts[i] % kDigits + 1];
    ++high[experts[i] / kDigits + 1];
  }
  accumulate(&low);
  if (one_digit) {
    for (int64_t i = 0; i < entries; ++i) place[i] = low[experts[i]]++;
    return entries;
  }
  accumulate(&high);
  std::vector<int32_t> by_low_digit(entries);
  for (int64_t i = 0; i < entries; ++i) by_low_digit[low[experts[i] % kDigits]++] = static_cast<int32_t>(i);
  for (const int32_t i : by_low_digit) place[i] = high[experts[i] / kDigits]++;
  return entries;
}

const void* row_of(const void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<const char*>(base) + row * width * element_size(type);
}
void* row_of(void* base, ElementType type, int64_t row, int64_t width) {
  return static_cast<char*>(base) + row * width * element_size(type);
}

}  // namespace

int64_t moe_places(const int32_t* experts, int64_t entries, int32_t* place) { return places(experts, entries, place); }
int64_t moe_places(const int64_t* experts, int64_t entries, int32_t* place) { return places(experts, entries, place); }

int64_t moe_entries(const int32_t* place, int64_t entries, int32_t* entry_at) {
  for (int64_t j = 0; j < entries; ++j) entry_at[j] = -1;
  for (int64_t i = 0; i < entries; ++i) {
    if (place[i] < 0 || place[i] >= entries || entry_at[place[i]] >= 0) return i;
    entry_at[place[i]] = static_cast<int32_t>(i);
  }
  return entries;
}

void moe_permute(ElementType type, const MoeShape& shape, const void* tokens, const int32_t* place, void* permuted) {
  if (compute_is_disabled()) return;
  const int64_t row_bytes = shape.width * element_size(type);
  for_each_range(shape.tokens, shape.width * shape.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = t * shape.top_k; i < (t + 1) * shape.top_k; ++i)
        if (place[i] < shape.kept)
          std::memcpy(row_of(permuted, type, place[i], shape.width), row_of(tokens, type, t, shape.width), row_bytes);
  });
}

void moe_unpermute(ElementType type, const MoeShape& shape, const void* permuted, const int32_t* place,
                   const float* probs, void* out) {
  if (compute_is_disabled()) return;
  const auto combine = PF_SELECT_TABLE(moe_table).combine[static_cast<int>(type)];
  for_each_range(shape.tokens, shape.width * shape.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t entry = t * shape.top_k;
      combine(permuted, shape.kept, place + entry, probs ? probs + entry : nullptr, shape.top_k, shape.width,
              row_of(out, type, t, shape.width));
    }
  });
}

void moe_unpermute_backward(ElementType type, const MoeShape& shape, const void* dout, const void* permuted,
                            const int32_t* entry_at, const float* probs, void* dpermuted, float* dprobs) {
  if (compute_is_disabled()) return;
  const auto scale_and_dot = PF_SELECT_TABLE(moe_table).scale_and_dot[static_cast<int>(type)];
  if (probs)
    for (int64_t j = shape.kept; j < shape.entries(); ++j) dprobs[entry_at[j]] = 0.0f;
  for_each_range(shape.kept, shape.width, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const int64_t entry = entry_at[j];
      const void* from = row_of(dout, type, entry / shape.top_k, shape.width);
      void* to = row_of(dpermuted, type, j, shape.width);
      if (probs)
        dprobs[entry] = scale_and_dot(from, row_of(permuted, type, j, shape.width), probs[entry], shape.width, to);
      else
        std::memcpy(to, from, shape.width * element_size(type));
    }
  });
}

}  // namespace paddle_fused::kernels
