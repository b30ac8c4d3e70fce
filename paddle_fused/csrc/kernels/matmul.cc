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
      : problem_(problem), a_(a), b_(b), table_(PF_SELECT_TABLE(matmul_table)) {
    const int64_t row_tiles = blocks(std::min(problem.rows, kPartRows), kMatmulRows);
    const int64_t column_tiles = blocks(std::min(problem.columns, kPartColumns), kMatmulColumns);
    sums_floats_ = row_tiles * column_tiles * kTileFloats;
    panels_floats_ = column_tiles * kMatmulColumns * kMatmulDepth;
  }

  int64_t workspace_floats() const { return sums_floats_ + panels_floats_; }

  // `out` is where the result number `output` begins.
  void run(int64_t output, const MatmulPart& out, float* workspace) const {
    for (int64_t row = 0; row < problem_.rows; row += kPartRows)
      for (int64_t column = 0; column < problem_.columns; column += kPartColumns) {
        const Part part{row, column, std::min(kPartRows, problem_.rows - row),
                        std::min(kPartColumns, problem_.columns - column)};
        run_part(output, part, out, workspace, workspace + sums_floats_);
      }
  }

 private:
  struct Part {
    int64_t row, column, rows, columns;
  };

  static MatmulBlock block(const MatmulOperand& x, ElementType type, int64_t matrix, int64_t row, int64_t column,
                           int64_t rows, int64_t columns) {
    const int64_t first = x.offsets[matrix] + row * x.row_stride + column * x.column_stride;
    return {static_cast<const char*>(x.data) + first * element_size(type), x.row_stride, x.column_stride, rows,
            columns};
  }

  void run_part(int64_t output, const Part& part, const MatmulPart& out, float* sums, float* panels) const {
    const MatmulTypes& type = problem_.type;
    const auto pack_panel = table_.pack_panel[static_cast<int>(type.b)];
    const auto multiply = table_.multiply[static_cast<int>(type.a)];
    const auto store = table_.store[static_cast<int>(type.out)];
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
        pack_panel(block(b_, type.b, matrix, k, part.column + p * width, depth, columns), panels + p * panel_floats);
      }
#pragma omp parallel for schedule(static) if (tiles > 1)
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = t / column_tiles * kMatmulRows, column = t % column_tiles * kMatmulColumns;
        const int64_t rows = std::min(kMatmulRows, part.rows - row);
        const int64_t columns = std::min(kMatmulColumns, part.columns - column);
        float* tile = sums + t * kTileFloats;
        multiply(block(a_, type.a, matrix, part.row + row, k, rows, depth), panels + column * kMatmulDepth, columns,
                 tile, step > 0);
        if (step + 1 < steps) continue;
        const int64_t first = (part.row + row) * out.row_stride + part.column + column;
        store(tile, rows, columns, static_cast<char*>(out.data) + first * element_size(type.out), out.row_stride,
              out.accumulate);
      }
    }
  }

  const MatmulProblem& problem_;
  const MatmulOperand &a_, &b_;
  const MatmulTable& table_;
  int64_t sums_floats_, panels_floats_;
};

}  // namespace

void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out) {
  const int64_t out_bytes = problem.rows * problem.columns * element_size(problem.type.out);
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
  for (int64_t i = 0; i < problem.outputs; ++i) {
    const MatmulPart result{static_cast<char*>(out) + i * out_bytes, problem.columns, false};
    product.run(i, result, workspace.get() + omp_get_thread_num() * floats);
  }
}

void matmul_into(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, const MatmulPart& out) {
  if (problem.rows == 0 || problem.columns == 0) return;
  if (problem.depth == 0) {
    const int64_t size = element_size(problem.type.out);
    for (int64_t row = 0; !out.accumulate && row < problem.rows; ++row)
      std::memset(static_cast<char*>(out.data) + row * out.row_stride * size, 0, problem.columns * size);
    return;
  }
  const Product product(problem, a, b);
  const Workspace workspace = allocate(product.workspace_floats());
  product.run(0, out, workspace.get());
}

}  // namespace paddle_fused::kernels
