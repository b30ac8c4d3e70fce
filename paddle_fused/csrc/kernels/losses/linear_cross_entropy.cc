#include "kernels/losses/linear_cross_entropy.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/elementwise/cast.h"
#include "kernels/losses/linear_cross_entropy_table.h"
#include "kernels/losses/valid_tokens.h"
#include "kernels/matmul/matmul.h"
#include "kernels/no_compute_guard.h"
#include "kernels/parallel.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

constexpr int64_t kZero = 0;  // a single matrix starts at its operand's data
constexpr int64_t kTileFloats = 4 << 20, kNarrowestTile = 192;

// Number of columns of the logits in memory at a time: 16 MiB, or the narrowest product that is still fast.
int64_t tile_columns(int64_t rows) {
  return std::max<int64_t>(1, kTileFloats / std::max<int64_t>(rows, 1) / kNarrowestTile) * kNarrowestTile;
}

// The tokens that are not ignored, and the logits of one tile at a time.
class Logits {
 public:
  struct Tile {
    int64_t block, first, columns;  // columns [first, first + columns) of the weight
  };

  Logits(const LinearCrossEntropyProblem& problem, const void* hidden, const void* weight)
      : problem_(problem), tokens_(problem, hidden), weight_(static_cast<const char*>(weight)) {
    widest_ = std::min(tile_columns(rows()), problem.vocabulary / problem.blocks);
    logits_ = allocate(rows() * widest_);
  }

  // Allocates a gradient in the type of the product. Without it, only the float32 gradient exists.
  void round_gradients() {
    if (problem_.type == ElementType::kBFloat16 && multiplies_bfloat16())
      rounded_ = allocate((rows() * widest_ + 1) / 2);
  }

  int64_t rows() const { return tokens_.count(); }
  int64_t token(int64_t row) const { return tokens_.token(row); }
  float* row(const Tile& tile, int64_t r) const { return logits_.get() + r * tile.columns; }

  // Row r contains its gradient.
  void keep_gradient(const Tile& tile, int64_t r) const {
    if (rounded_)
      cast(ElementType::kFloat32, row(tile, r), ElementType::kBFloat16,
           reinterpret_cast<BFloat16*>(rounded_.get()) + r * tile.columns, tile.columns);
  }

  // The position of the token's label in the tile, or -1.
  int64_t label_in(const Tile& tile, int64_t r) const {
    const int64_t size = problem_.vocabulary / problem_.blocks;
    const int64_t first_id = problem_.first_ids[tile.block] + tile.first - tile.block * size;
    const int64_t place = problem_.labels[token(r)] - first_id;
    return place >= 0 && place < tile.columns ? place : -1;
  }

  // Calls body(tile) with the logits of each tile.
  template <typename Body>
  void for_each_tile(const Body& body) const {
    const int64_t size = problem_.vocabulary / problem_.blocks;
    for (int64_t block = 0; block < problem_.blocks; ++block)
      for (int64_t begin = 0; begin < size; begin += widest_) {
        const Tile tile{block, block * size + begin, std::min(widest_, size - begin)};
        matmul({{problem_.type, problem_.type, ElementType::kFloat32}, rows(), tile.columns, problem_.width, 1, 1},
               {tokens_.hidden(), problem_.width, 1, &kZero}, weight(tile), logits_.get());
        body(tile);
      }
  }

  // sum += (gradient of the tile) weight^T, [rows, H]
  void add_times_weight(const Tile& tile, float* sum) const {
    MatmulOperand w = weight(tile);
    std::swap(w.row_stride, w.column_stride);
    matmul_into({{gradient_type(), problem_.type, ElementType::kFloat32}, rows(), problem_.width, tile.columns, 1, 1},
                {gradients(), tile.columns, 1, &kZero}, w, {sum, problem_.width, true});
  }

  // Computes the tile's columns of dweight = hidden^T (gradient of the tile).
  void write_weight_gradient(const Tile& tile, void* dweight) const {
    const MatmulOperand logits{gradients(), tile.columns, 1, &kZero};
    const MatmulOperand hidden{tokens_.hidden(), problem_.width, 1, &kZero};
    const MatmulPart part{static_cast<char*>(dweight) + offset(tile) * element_size(problem_.type),
                          problem_.transpose_weight ? problem_.width : problem_.vocabulary, false};
    if (problem_.transpose_weight)
      matmul_into({{gradient_type(), problem_.type, problem_.type}, tile.columns, problem_.width, rows(), 1, 1},
                  {logits.data, 1, tile.columns, &kZero}, hidden, part);
    else
      matmul_into({{problem_.type, gradient_type(), problem_.type}, problem_.width, tile.columns, rows(), 1, 1},
                  {hidden.data, 1, problem_.width, &kZero}, logits, part);
  }

 private:
  ElementType gradient_type() const { return rounded_ ? ElementType::kBFloat16 : ElementType::kFloat32; }
  const float* gradients() const { return rounded_ ? rounded_.get() : logits_.get(); }

  int64_t offset(const Tile& tile) const { return tile.first * (problem_.transpose_weight ? problem_.width : 1); }

  MatmulOperand weight(const Tile& tile) const {
    const char* first = weight_ + offset(tile) * element_size(problem_.type);
    if (problem_.transpose_weight) return {first, 1, problem_.width, &kZero};
    return {first, problem_.vocabulary, 1, &kZero};
  }

  const LinearCrossEntropyProblem& problem_;
  ValidTokens tokens_;
  const char* weight_;
  int64_t widest_;
  Workspace logits_, rounded_;
};

struct Statistics {
  float maximum = -FLT_MAX;
  double total = 0.0;
};

}  // namespace

void linear_cross_entropy_forward(const LinearCrossEntropyProblem& problem, const void* hidden, const void* weight,
                                  float* lse, float* target) {
  if (compute_is_disabled()) return;
  const auto& table = PF_SELECT_TABLE(linear_cross_entropy_table);
  const int64_t blocks = problem.blocks;
  std::memset(lse, 0, problem.tokens * blocks * sizeof(float));
  std::memset(target, 0, problem.tokens * blocks * sizeof(float));
  const Logits logits(problem, hidden, weight);
  std::vector<Statistics> statistics(logits.rows() * blocks);
  logits.for_each_tile([&](const Logits::Tile& tile) {
    for_each_range(logits.rows(), tile.columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = logits.row(tile, r);
        Statistics& so_far = statistics[r * blocks + tile.block];
        table.join(row, tile.columns, &so_far.maximum, &so_far.total);
        const int64_t label = logits.label_in(tile, r);
        if (label >= 0) target[logits.token(r) * blocks + tile.block] = row[label];
      }
    });
  });
  for (int64_t r = 0; r < logits.rows(); ++r)
    for (int64_t g = 0; g < blocks; ++g) {
      const Statistics& all = statistics[r * blocks + g];
      lse[logits.token(r) * blocks + g] = static_cast<float>(all.maximum + std::log(all.total));
    }
}

void linear_cross_entropy_backward(const LinearCrossEntropyProblem& problem, const void* hidden, const void* weight,
                                   const float* lse, const float* dlse, const float* dtarget, void* dhidden,
                                   void* dweight) {
  if (compute_is_disabled()) return;
  const auto& table = PF_SELECT_TABLE(linear_cross_entropy_table);
  const int64_t row_bytes = problem.width * element_size(problem.type);
  Logits logits(problem, hidden, weight);
  logits.round_gradients();
  const int64_t sum_floats = dhidden ? logits.rows() * problem.width : 0;
  const Workspace sums = allocate(sum_floats);
  std::memset(sums.get(), 0, sum_floats * sizeof(float));
  logits.for_each_tile([&](const Logits::Tile& tile) {
    for_each_range(logits.rows(), tile.columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = logits.row(tile, r);
        const int64_t statistic = logits.token(r) * problem.blocks + tile.block;
        table.gradient(row, tile.columns, lse[statistic], dlse[statistic]);
        const int64_t label = logits.label_in(tile, r);
        if (label >= 0) row[label] += dtarget[statistic];
        logits.keep_gradient(tile, r);
      }
    });
    if (dhidden) logits.add_times_weight(tile, sums.get());
    if (dweight) logits.write_weight_gradient(tile, dweight);
  });
  if (!dhidden) return;
  std::memset(dhidden, 0, problem.tokens * row_bytes);
  for_each_range(logits.rows(), problem.width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      cast(ElementType::kFloat32, sums.get() + r * problem.width, problem.type,
           static_cast<char*>(dhidden) + logits.token(r) * row_bytes, problem.width);
  });
}

}  // namespace paddle_fused::kernels
