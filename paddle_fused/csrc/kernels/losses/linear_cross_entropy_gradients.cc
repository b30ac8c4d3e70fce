#include <algorithm>
#include <cstring>

#include "kernels/losses/linear_cross_entropy.h"
#include "kernels/losses/linear_cross_entropy_table.h"
#include "kernels/losses/valid_tokens.h"
#include "kernels/matmul/matmul.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

constexpr int64_t kZero = 0;  // a single matrix starts at its operand's data

// Number of tokens with logits in memory at a time: a tenth of the tokens, or 16 MiB of logits. Each chunk reads the
// weight and its gradient once more.
constexpr int64_t kChunks = 10, kChunkFloats = 4 << 20;

int64_t chunk_of(int64_t tokens, int64_t vocabulary) {
  return std::min(tokens, std::max((tokens + kChunks - 1) / kChunks, kChunkFloats / vocabulary + 1));
}

MatmulOperand dense(const void* data, int64_t columns) { return {data, columns, 1, &kZero}; }
MatmulOperand transposed(const void* data, int64_t columns) { return {data, 1, columns, &kZero}; }

// The logits of consecutive tokens that are not ignored.
class LogitsChunk {
 public:
  LogitsChunk(const LinearCrossEntropyProblem& problem, const ValidTokens& tokens, int64_t first, int64_t count,
        float* logits)
      : problem_(problem), tokens_(tokens), first_(first), count_(count), logits_(logits) {}

  void compute(const float* weight) const {
    matmul({ElementType::kFloat32, count_, problem_.vocabulary, problem_.width, 1, 1}, dense(hidden(), problem_.width),
           problem_.transpose_weight ? transposed(weight, problem_.width) : dense(weight, problem_.vocabulary),
           logits_);
  }

  // Replaces the logits by scale * (softmax - one at the label).
  void turn_into_gradient(float scale, float* loss) const {
    const auto run = PF_SELECT_TABLE(linear_cross_entropy_table).loss_and_gradient;
    const int64_t vocabulary = problem_.vocabulary;
    for_each_range(count_, vocabulary, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t token = tokens_.token(first_ + r), label = problem_.labels[token] - problem_.first_ids[0];
        loss[token] = run(logits_ + r * vocabulary, vocabulary, label, scale);
      }
    });
  }

  void write_hidden_gradient(const float* weight, float* dhidden) const {
    matmul({ElementType::kFloat32, count_, problem_.width, problem_.vocabulary, 1, 1},
           dense(logits_, problem_.vocabulary),
           problem_.transpose_weight ? dense(weight, problem_.width) : transposed(weight, problem_.vocabulary),
           dhidden);
  }

  void add_weight_gradient(float* dweight) const {
    const int64_t vocabulary = problem_.vocabulary, width = problem_.width;
    if (problem_.transpose_weight)
      matmul_into({ElementType::kFloat32, vocabulary, width, count_, 1, 1}, transposed(logits_, vocabulary),
                  dense(hidden(), width), {dweight, width, first_ > 0});
    else
      matmul_into({ElementType::kFloat32, width, vocabulary, count_, 1, 1}, transposed(hidden(), width),
                  dense(logits_, vocabulary), {dweight, vocabulary, first_ > 0});
  }

 private:
  const float* hidden() const { return reinterpret_cast<const float*>(tokens_.hidden()) + first_ * problem_.width; }

  const LinearCrossEntropyProblem& problem_;
  const ValidTokens& tokens_;
  int64_t first_, count_;
  float* logits_;
};

}  // namespace

void linear_cross_entropy_gradients(const LinearCrossEntropyProblem& problem, const float* hidden, const float* weight,
                                    float scale, float* loss, float* dhidden, float* dweight) {
  if (compute_is_disabled()) return;
  const int64_t width = problem.width;
  const ValidTokens tokens(problem, hidden);
  const bool all_count = tokens.all_count(problem);
  std::memset(loss, 0, problem.tokens * sizeof(float));
  if (dhidden && !all_count) std::memset(dhidden, 0, problem.tokens * width * sizeof(float));
  if (dweight && tokens.count() == 0) std::memset(dweight, 0, problem.vocabulary * width * sizeof(float));
  if (tokens.count() == 0) return;
  const int64_t most = chunk_of(tokens.count(), problem.vocabulary);
  const Workspace logits = allocate(most * problem.vocabulary);
  const Workspace rows = allocate(dhidden && !all_count ? most * width : 0);
  for (int64_t first = 0; first < tokens.count(); first += most) {
    const int64_t count = std::min(most, tokens.count() - first);
    const LogitsChunk chunk(problem, tokens, first, count, logits.get());
    chunk.compute(weight);
    chunk.turn_into_gradient(scale, loss);
    if (dweight) chunk.add_weight_gradient(dweight);
    if (!dhidden) continue;
    chunk.write_hidden_gradient(weight, all_count ? dhidden + first * width : rows.get());
    for (int64_t r = 0; !all_count && r < count; ++r)
      std::memcpy(dhidden + tokens.token(first + r) * width, rows.get() + r * width, width * sizeof(float));
  }
}

}  // namespace paddle_fused::kernels
