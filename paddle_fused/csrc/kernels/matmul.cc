#include "kernels/matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "kernels/matmul_table.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

// The part of a result that is built up at a time: packed panels are shared by all of its tiles, and its sums wait in
// fp32 for the next block of the depth.
constexpr int64_t kPartRows = 16 * kMatmulRows, kPartColumns = 4 * kMatmulColumns;
constexpr int64_t kTileFloats = kMatmulRows * kMatmulColumns;

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

class Product {
 public:
  Product(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b)
      : problem_(problem), a_(a), b_(b), table_(PF_SELECT_TABLE(matmul_table)), type_(static_cast<int>(problem.type)) {
    const int64_t row_tiles = blocks(std::min(problem.rows, kPartRows), kMatmulRows);
    const int64_t column_tiles = blocks(std::min(problem.columns, kPartColumns), kMatmulColumns);
    sums_floats_ = row_tiles * column_tiles * kTileFloats;
    panels_floats_ = column_tiles * kMatmulColumns * kMatmulDepth;
  }

  int64_t workspace_floats() const { return sums_floats_ + panels_floats_; }

  void run(int64_t output, void* out, float* workspace) const {
    for (int64_t row = 0; row < problem_.rows; row += kPartRows)
      for (int64_t column = 0; column < problem_.columns; column += kPartColumns) {
        const Part part{row, column, std::min(kPartRows, problem_.rows - row),
                        std::min(kPartColumns, problem_.columns - column)};
        run_part(output, part, static_cast<char*>(out), workspace, workspace + sums_floats_);
      }
  }

 private:
  struct Part {
    int64_t row, column, rows, columns;
  };

  MatmulBlock block(const MatmulOperand& x, int64_t matrix, int64_t row, int64_t column, int64_t rows,
                    int64_t columns) const {
    const int64_t first = x.offsets[matrix] + row * x.row_stride + column * x.column_stride;
    return {static_cast<const char*>(x.data) + first * element_size(problem_.type), x.row_stride, x.column_stride,
            rows, columns};
  }

  void run_part(int64_t output, const Part& part, char* out, float* sums, float* panels) const {
    const int64_t width = table_.panel_columns, panel_floats = width * kMatmulDepth;
    const int64_t panel_count = blocks(part.columns, width);
    const int64_t column_tiles = blocks(part.columns, kMatmulColumns);
    const int64_t tiles = blocks(part.rows, kMatmulRows) * column_tiles;
    const int64_t steps_per_term = blocks(problem_.depth, kMatmulDepth), steps = problem_.terms * steps_per_term;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t matrix = output * problem_.terms + step / steps_per_term;
      const int64_t k = step % steps_per_term * kMatmulDepth, depth = std::min(kMatmulDepth, problem_.depth - k);
#pragma omp parallel for schedule(static) if (tiles > 1)
      for (int64_t p = 0; p < panel_count; ++p) {
        const int64_t columns = std::min(width, part.columns - p * width);
        table_.pack_panel[type_](block(b_, matrix, k, part.column + p * width, depth, columns),
                                 panels + p * panel_floats);
      }
#pragma omp parallel for schedule(static) if (tiles > 1)
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = t / column_tiles * kMatmulRows, column = t % column_tiles * kMatmulColumns;
        const int64_t rows = std::min(kMatmulRows, part.rows - row);
        const int64_t columns = std::min(kMatmulColumns, part.columns - column);
        float* tile = sums + t * kTileFloats;
        table_.multiply[type_](block(a_, matrix, part.row + row, k, rows, depth),
                               panels + column * kMatmulDepth, columns, tile, step > 0);
        if (step + 1 < steps) continue;
        const int64_t first = (part.row + row) * problem_.columns + part.column + column;
        table_.store[type_](tile, rows, columns, out + first * element_size(problem_.type), problem_.columns);
      }
    }
  }

  const MatmulProblem& problem_;
  const MatmulOperand &a_, &b_;
  const MatmulTable& table_;
  const int type_;
  int64_t sums_floats_, panels_floats_;
};

}  // namespace

void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out) {
  const int64_t out_bytes = problem.rows * problem.columns * element_size(problem.type);
  if (problem.outputs == 0 || out_bytes == 0) return;
  if (problem.depth == 0 || problem.terms == 0) {
    std::memset(out, 0, problem.outputs * out_bytes);
    return;
  }
  const Product product(problem, a, b);
  // Many results are shared among the threads whole; of few results every thread computes some tiles. (A parallel loop
  // within a parallel loop runs on one thread.)
  const int most = omp_get_max_threads();
  const int threads = problem.outputs >= 4 * most ? most : 1;
  const int64_t floats = (product.workspace_floats() + 15) / 16 * 16;
  const Workspace workspace = allocate(floats * threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < problem.outputs; ++i)
    product.run(i, static_cast<char*>(out) + i * out_bytes, workspace.get() + omp_get_thread_num() * floats);
}

}  // namespace paddle_fused::kernels
